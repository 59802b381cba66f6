// {bundle, trustedRoot?, keys?: {hint: PEM}, identity?, issuer?} on stdin → {} or {error} on stdout.
const { createPublicKey } = require("crypto");
const { readFileSync } = require("fs");
const { bundleFromJSON } = require("@sigstore/bundle");
const { TrustedRoot } = require("@sigstore/protobuf-specs");
const { Verifier, toSignedEntity, toTrustMaterial } = require("@sigstore/verify");

const asked = JSON.parse(readFileSync(0, "utf8"));
const keys = (hint) => {
  if (!asked.keys || !asked.keys[hint]) throw new Error(`no key ${hint}`);
  return { publicKey: createPublicKey(asked.keys[hint]), validFor: () => true };
};
// Who signs with a key writes into no log.
const wanted = asked.keys ? { tlogThreshold: 0, ctlogThreshold: 0, timestampThreshold: 0 } : {};
const policy = asked.identity && {
  subjectAlternativeName: asked.identity,
  extensions: { issuer: asked.issuer },
};
let told = {};
try {
  const trust = toTrustMaterial(TrustedRoot.fromJSON(asked.trustedRoot || {}), keys);
  const entity = toSignedEntity(bundleFromJSON(asked.bundle));
  new Verifier(trust, wanted).verify(entity, policy);
} catch (error) {
  told = { error: `${error.name}: ${error.message}` };
}
console.log(JSON.stringify(told));
