# What Nix fetches of the pinned sources. pins.json is made of sources.manifest and flake.lock by
# `make reference`: python/dsv41/pins.py is their only reader, and says why.
{
  pkgs,
  inputs,
  pins ? (pkgs.lib.importJSON ./pins.json).pins,
}:
let
  inherit (pkgs) lib;
  byName = lib.listToAttrs (map (pin: lib.nameValuePair pin.name pin) pins);
  pin = name: byName.${name} or (throw "D170 Nothing is pinned as ${name}. Fix: dsv41 pins");

  # a file of sources.manifest, by its SHA-256
  file =
    name:
    if (pin name).sha256 == null then
      throw "D170 ${name} is pinned as a tree, not as a file. Fix: add it to sources.manifest"
    else
      pkgs.fetchurl {
        name = baseNameOf (pin name).url;
        inherit (pin name) url sha256;
      };
in
{
  inherit file;
  commit = name: (pin name).commit;

  # An input of the flake. One that was locked without a narHash would be whatever the forge sends,
  # so until there is one its archive is taken, whose SHA-256 is known.
  tree =
    name:
    if (pin name).nar_hash != null then
      inputs.${name}
    else
      pkgs.runCommand "${name}-source" { archive = file name; } ''
        mkdir "$out"
        tar -xf "$archive" --strip-components=1 -C "$out"
      '';
}
