# What goes wrong when `lib` is another one than the stand-in's: names of cases, [ ] when all is well.
{ lib }:
let
  pkgs = import ./hostpkgs {
    inherit lib;
    system = builtins.currentSystem;
  };
  wanted = lib.importJSON ./parity.json;
  given = import ./parity.nix { inherit lib; };
  cases = import ./modules {
    inherit lib pkgs;
    module = ../../nix/modules;
    templates = import ../../nix/templates;
  };
  fails = set: lib.filter (name: !set.${name}) (lib.attrNames set);
in
lib.filter (name: given.${name} or null != wanted.${name}) (lib.attrNames wanted)
++ fails cases.accepted
++ fails cases.refused
