# The RoCE ports: addresses, MTU 9000, ARP that answers on the right cable, a firewall that is open on these ports alone; and
# what the kernel needs for large pinned memory.
{ lib, config, ... }:
let
  inherit (lib) imap0 listToAttrs mkDefault mkIf mkOption nameValuePair types;
  cfg = config.services.dsv41;
  interfaces = cfg.self.fabricInterfaces;
  ofPorts = f: listToAttrs (imap0 f interfaces);
  kernel = config.boot.kernelPackages.kernel.version;
in
{
  options.services.dsv41.fabric = {
    enable = mkOption {
      type = types.bool;
      default = true;
      description = "Whether the module sets up `fabricInterfaces`: networkd addresses, MTU, ARP and firewall.";
    };
    trustSocketInterface = mkOption {
      type = types.bool;
      default = false;
      description = ''
        Whether the firewall trusts `socketIfname`. The ranks meet and start NCCL over it, on ports that the kernel
        picks, so a firewall that is closed there stops them. Turn it on where that network holds the nodes alone; else
        open it yourself.
      '';
    };
  };

  config = mkIf cfg.enable {
    # kernel 7.0 keeps 9.3 GiB for kexec handover, which pinned memory cannot use: ibv_reg_mr then fails for lack of memory
    # (user report P01). A kernel that has no handover ignores the word.
    boot.kernelParams = lib.optional (lib.versionAtLeast kernel "7.0") "kho=off";

    systemd.network = mkIf cfg.fabric.enable {
      enable = mkDefault true;
      networks = ofPorts (
        i: name:
        nameValuePair "40-dsv41-${name}" {
          matchConfig.Name = name;
          address = [ (builtins.elemAt cfg.self.fabric i) ];
          networkConfig = {
            DHCP = "no";
            IPv6AcceptRA = false;
            LinkLocalAddressing = "no";
          };
          linkConfig = {
            # RoCE's own MTU is then 4096; at 1500 it is 1024, which cost one site 40 % of its prefill
            MTUBytes = "9000";
            # a cable that is out must not hold up the boot
            RequiredForOnline = "no";
          };
        }
      );
    };
    networking.networkmanager.unmanaged = mkIf cfg.fabric.enable interfaces;

    # two ports of one host must each answer for their own address only
    boot.kernel.sysctl = mkIf cfg.fabric.enable (
      lib.mkMerge (
        map (name: {
          "net.ipv4.conf.${name}.arp_ignore" = mkDefault 1;
          "net.ipv4.conf.${name}.arp_announce" = mkDefault 2;
        }) interfaces
      )
    );

    networking.firewall.interfaces = mkIf cfg.fabric.enable (
      lib.genAttrs interfaces (_: { allowedTCPPorts = [ cfg.masterPort cfg.controlPort ]; })
    );
    networking.firewall.trustedInterfaces = lib.optional cfg.fabric.trustSocketInterface cfg.self.socketIfname;
  };
}
