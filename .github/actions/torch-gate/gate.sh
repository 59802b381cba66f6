#!/usr/bin/env bash
# Runs $SCRIPT in $IMAGE, in the current folder, and exits with the script's exit code. With $KEYS or $IDENTITY,
# `torchkiln verify` first checks the image in the registry: who published it, and that its checks passed on GPUs.
set -euo pipefail

fail() {
  echo "::error title=torch-gate::$1"
  exit 2
}

[[ $IMAGE =~ ^[^@]+@sha256:[0-9a-f]{64}$ ]] || fail "$IMAGE: a digest is required, because a tag can move: REPOSITORY@sha256:…"

if [ -n "$KEYS$IDENTITY" ]; then
  signers=(${IDENTITY:+--identity "$IDENTITY"} ${ISSUER:+--issuer "$ISSUER"})
  while read -r key; do
    [ -z "$key" ] || signers+=(--key "$key")
  done <<< "$KEYS"
  "$(dirname "${BASH_SOURCE[0]}")/../../../.venv/bin/torchkiln" verify "$IMAGE" "${signers[@]}"
fi

line=(docker run --rm --shm-size "$SHM_SIZE" --volume "$PWD:/workspace" --workdir /workspace --user "$(id -u):$(id -g)")
[ "$GPUS" = none ] || line+=(--gpus "$GPUS")
exec "${line[@]}" "$IMAGE" bash -euo pipefail -c "$SCRIPT"
