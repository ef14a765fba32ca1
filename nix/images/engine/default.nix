# What the engine images are made of: a fixed-output derivation per wheel and per Debian package of
# the locks beside this file. Nothing is fetched to know them.
{ lib, packages }:
let
  engines = [
    "sglang"
    "vllm"
  ];
in
rec {
  wheelLocks = lib.genAttrs engines (name: lib.importJSON (./. + "/wheels-${name}-arm64.json"));
  debLock = lib.importJSON ./debs-arm64.json;

  # package name -> derivation
  wheels = lib.mapAttrs (_: lock: named (packages.wheel lock.python) lock.wheels) wheelLocks;
  fetchWheel = packages.wheel wheelLocks.sglang.python;
  debs = named (packages.deb debLock.snapshot) debLock.packages;
  named = fetch: entries: lib.listToAttrs (map (p: lib.nameValuePair p.name (fetch p)) entries);
}
