# The checks of services.dsv41, its templates and its page of options.
{ pkgs }:
let
  inherit (pkgs) lib;
  templates = import ../../../nix/templates;
  cases = import ./. {
    inherit lib pkgs templates;
    module = ../../../nix/modules;
  };
  pass = name: pkgs.runCommand "check-${name}" { } "touch $out";
  false-ones = set: lib.filter (n: !set.${n}) (lib.attrNames set);
  wrong = false-ones cases.accepted ++ false-ones cases.refused;

  # what a template's flake makes of its inputs; nixosSystem evaluates against the options of ./nixos.nix
  system =
    name:
    (import (templates.${name}.path + "/flake.nix")).outputs {
      dsv41.nixosModules.default = ../../../nix/modules;
      dgx-spark.nixosModules.dgx-spark = {
        virtualisation.podman.enable = true;
        hardware.nvidia-container-toolkit.enable = true;
      };
      nixpkgs.lib = lib // {
        nixosSystem =
          { modules, ... }:
          lib.evalModules {
            modules =
              # the hosts' own files are theirs to write
              lib.filter (m: !builtins.isPath m || builtins.pathExists m) modules
              ++ [
                ./nixos.nix
                { _module.args.pkgs = pkgs; }
              ];
          };
      };
    };
  hosts = name: (system name).nixosConfigurations;
  isWhole =
    name: host:
    lib.all (a: a.assertion) host.config.assertions
    && lib.hasInfix "rank exec" host.config.systemd.services.dsv41-rank.serviceConfig.ExecStart;
  broken = lib.filter (
    name: !lib.all (isWhole name) (lib.attrValues (hosts name)) || lib.attrNames (hosts name) == [ ]
  ) (lib.attrNames templates);
in
{
  module =
    if wrong == [ ] then pass "module" else throw "services.dsv41 fails: ${toString wrong}";

  templates =
    if broken == [ ] then pass "templates" else throw "templates fail: ${toString broken}";

  # plan's own words stop the build of a system that cannot work; and the units are those that plan prints
  module-plans =
    pkgs.runCommand "check-module-plans" { unit = builtins.toJSON cases.units; }
      ''
        ${lib.concatMapStrings (plan: ''
          ${pkgs.python3}/bin/python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["ranks"]' ${plan}
        '') (lib.attrValues cases.plans)}
        ${lib.concatMapStrings (code: ''
          ! ${cases.unplannable.${code}} > said 2>&1
          grep -F ${code} said || { cat said; exit 1; }
        '') (lib.attrNames cases.unplannable)}
        ${cases.systemd} > units
        ${pkgs.python3}/bin/python3 ${./units.py} units "$unit"
        touch "$out"
      '';

  # mend it: nix build .#nixos-options, then copy result to docs/reference/nixos.md
  nixos-options = pkgs.runCommand "check-nixos-options" { } ''
    diff ${../../../docs/reference/nixos.md} ${import ../../../nix/docs.nix { inherit lib pkgs; }}
    touch "$out"
  '';
}
