# The check engine-locks: every locked wheel and Debian package of the engine images is a derivation
# with its own hash. All are evaluated, none is fetched.
{ pkgs }:
let
  inherit (pkgs) lib;
  images = ../../nix/images;
  machinery = import (images + "/machinery.nix") {
    inherit lib pkgs;
    bases = images + "/bases";
  };
  engine = import (images + "/engine") {
    inherit lib;
    packages = import (images + "/packages.nix") { inherit lib pkgs machinery; };
  };

  entries =
    lib.concatMap (lock: lock.wheels) (lib.attrValues engine.wheelLocks) ++ engine.debLock.packages;
  derivations =
    lib.concatMap lib.attrValues (lib.attrValues engine.wheels) ++ lib.attrValues engine.debs;
  keys = names: lib.attrNames (lib.listToAttrs (map (n: lib.nameValuePair n null) names));
  # two engines with the same wheel fetch it once
  paths = keys (map (d: builtins.unsafeDiscardStringContext d.drvPath) derivations);
  hashes = keys (map (d: d.outputHash) derivations);
in
{
  engine-locks =
    if hashes == keys (map (e: e.sha256) entries) && lib.length paths == lib.length hashes then
      pkgs.runCommand "check-engine-locks" { } "echo ${toString (lib.length paths)} > $out"
    else
      throw "of ${toString (lib.length hashes)} locked hashes ${toString (lib.length paths)} derivations";
  inherit engine;
}
