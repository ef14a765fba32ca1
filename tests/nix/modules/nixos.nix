# The NixOS options that services.dsv41 touches, with their types in nixpkgs 26.05 and nothing behind them. Lists that two
# modules write need their type: `anything` refuses two definitions.
{ lib, ... }:
let
  inherit (lib) genAttrs mkOption types;
  typed = type: default: mkOption {
    inherit type default;
    description = "";
  };
  free = typed types.attrs { };
  listOf = type: typed (types.listOf type) [ ];
  ports = { allowedTCPPorts = listOf types.port; };
in
{
  options = {
    assertions = listOf types.attrs;
    warnings = listOf types.str;
    boot.kernelParams = listOf types.str;
    boot.kernelPackages = typed types.raw { kernel.version = "6.17.13"; };
    boot.kernel.sysctl = typed (types.attrsOf (types.either types.int types.str)) { };
    environment.systemPackages = listOf types.raw;
    environment.etc = typed (types.attrsOf types.attrs) { };
    fileSystems = typed (types.attrsOf types.attrs) { };
    hardware.nvidia-container-toolkit.enable = typed types.bool false;
    networking = {
      hostName = typed types.str "nixos";
      firewall = ports // {
        enable = typed types.bool true;
        trustedInterfaces = listOf types.str;
        interfaces = typed (types.attrsOf (types.submodule { options = ports; })) { };
      };
      networkmanager.unmanaged = listOf types.str;
      dhcpcd.denyInterfaces = listOf types.str;
      useNetworkd = typed types.bool false;
    };
    services.nfs.server = {
      enable = typed types.bool false;
      exports = typed types.lines "";
    };
    services.prometheus.scrapeConfigs = listOf types.attrs;
    systemd = {
      network.enable = typed types.bool false;
      network.wait-online.enable = typed types.bool true;
      network.networks = typed (types.attrsOf types.attrs) { };
      tmpfiles.rules = listOf types.str;
      services = typed (types.attrsOf (
        types.submodule {
          options = genAttrs [ "unitConfig" "serviceConfig" ] (_: free) // {
            description = typed types.str "";
            script = typed types.lines "";
          } // genAttrs [ "after" "before" "wants" "requires" "requiredBy" "wantedBy" ] (_: listOf types.str) // {
            path = listOf types.raw;
          };
        }
      )) { };
    };
    virtualisation.podman.enable = typed types.bool false;
  };
}
