// {bundle, trustedRoot?, keys?: {hint: PEM}, identity?, issuer?} on stdin → {} or {error} on stdout.
const { createPublicKey } = require("crypto");
const { readFileSync } = require("fs");
const { bundleFromJSON } = require("@sigstore/bundle");
const { TrustedRoot } = require("@sigstore/protobuf-specs");
const { Verifier, toSignedEntity, toTrustMaterial } = require("@sigstore/verify");

const request = JSON.parse(readFileSync(0, "utf8"));
const keys = (hint) => {
  if (!request.keys || !request.keys[hint]) throw new Error(`no key ${hint}`);
  return { publicKey: createPublicKey(request.keys[hint]), validFor: () => true };
};
// Who signs with a key writes into no log.
const wanted = request.keys ? { tlogThreshold: 0, ctlogThreshold: 0, timestampThreshold: 0 } : {};
const policy = request.identity && {
  subjectAlternativeName: request.identity,
  extensions: { issuer: request.issuer },
};
let result = {};
try {
  const trust = toTrustMaterial(TrustedRoot.fromJSON(request.trustedRoot || {}), keys);
  const entity = toSignedEntity(bundleFromJSON(request.bundle));
  new Verifier(trust, wanted).verify(entity, policy);
} catch (error) {
  result = { error: `${error.name}: ${error.message}` };
}
console.log(JSON.stringify(result));
