#!/usr/bin/env bash
# Runs $SCRIPT in $IMAGE, in the current folder, and exits as the script does. With $KEYS or $IDENTITY the
# image is verified first, from the registry alone: its publisher, and that it passed on GPUs.
set -euo pipefail

fail() {
  echo "::error title=torch-gate::$1"
  exit 2
}

[[ $IMAGE =~ ^[^@]+@sha256:[0-9a-f]{64}$ ]] || fail "$IMAGE: not by digest (REPOSITORY@sha256:…); a tag can move"

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
