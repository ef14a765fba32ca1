# The RoCE ports: addresses, MTU 9000, ARP that answers on the right cable. The firewall, which is about the management
# network alone: RDMA passes the kernel by. And what the kernel needs for large pinned memory.
{ lib, config, ... }:
let
  inherit (lib) imap0 listToAttrs mkDefault mkIf mkOption nameValuePair optional types;
  cfg = config.services.dsv41;
  interfaces = cfg.self.fabricInterfaces;
  ofPorts = f: listToAttrs (imap0 f interfaces);
  kernel = config.boot.kernelPackages.kernel.version;
  socket = cfg.self.socketIfname;
  inherit (config.networking) firewall;
in
{
  options.services.dsv41.fabric = {
    enable = mkOption {
      type = types.bool;
      default = true;
      description = "Whether the module sets up `fabricInterfaces`: networkd addresses, MTU and ARP.";
    };
    trustSocketInterface = mkOption {
      type = types.bool;
      default = false;
      description = ''
        Whether the firewall trusts `socketIfname`. The ranks meet there on `masterPort`, which is open anyway, and then
        start NCCL on ports that the kernel picks, so a firewall stops them. Turn it on where that network holds the
        nodes alone: every port is open there then. Else turn that firewall off, or open it for the nodes' addresses.
      '';
    };
  };

  config = mkIf cfg.enable {
    # kernel 7.0 keeps 9.3 GiB for kexec handover, which pinned memory cannot use: ibv_reg_mr then fails for lack of memory
    # (user report P01). A kernel that has no handover ignores the word.
    boot.kernelParams = optional (lib.versionAtLeast kernel "7.0") "kho=off";

    systemd.network = mkIf cfg.fabric.enable {
      enable = mkDefault true;
      # (system/boot/networkd.nix) no link of ours is required, and where NetworkManager or dhcpcd has the others, networkd's
      # wait would find nothing that comes online and hold up network-online.target until its timeout; theirs is awaited
      wait-online.enable = mkDefault config.networking.useNetworkd;
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
    # (services/networking/dhcpcd.nix) the client of a host without NetworkManager asks on every port that is up
    networking.dhcpcd.denyInterfaces = mkIf cfg.fabric.enable interfaces;

    # two ports of one host must each answer for their own address only
    boot.kernel.sysctl = mkIf cfg.fabric.enable (
      lib.mkMerge (
        map (name: {
          "net.ipv4.conf.${name}.arp_ignore" = mkDefault 1;
          "net.ipv4.conf.${name}.arp_announce" = mkDefault 2;
        }) interfaces
      )
    );

    # the Plan's rendezvous is the head's `address`, which is on this interface
    networking.firewall.interfaces.${socket}.allowedTCPPorts =
      optional (cfg.rank == 0) cfg.masterPort ++ [ cfg.controlPort ];
    networking.firewall.trustedInterfaces = optional cfg.fabric.trustSocketInterface socket;
    warnings = optional (firewall.enable && !builtins.elem socket firewall.trustedInterfaces) (
      "services.dsv41: the firewall is on and does not trust ${socket}, where NCCL starts on ports that the kernel picks. "
      + "Set services.dsv41.fabric.trustSocketInterface = true if that network holds the nodes alone, or open it for them."
    );
  };
}
