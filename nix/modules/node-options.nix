# What differs from node to node. The position in the list is the rank; the first is the head.
{ lib, ... }:
let
  inherit (lib) mkOption types;
  text = example: description: mkOption {
    type = types.str;
    inherit example description;
  };
  texts = example: description: mkOption {
    type = types.listOf types.str;
    inherit example description;
  };
  opt = type: default: description: mkOption { inherit type default description; };

  node.options = {
    name = text "spark1" "Name of the node; that of its host, or what `services.dsv41.node` says there.";
    address = text "10.0.0.1" "Address in the management network: endpoint, control, rendezvous.";
    socketIfname = text "enP7s7" "Interface that holds `address`; the ranks' sockets use it.";
    hca = texts [ "mlx5_0" "mlx5_1" ] ''
      RDMA devices of the fabric, by their names on this node (`ls /sys/class/infiniband`): `mlx5_0` and so on with the
      kernel's own names, `rocep1s0f0` and so on where udev renames them.
    '';
    fabric = texts [ "10.0.12.1/24" "10.0.13.1/24" ] ''
      Addresses of the fabric with their prefix; `fabric[i]` is the address on `hca[i]`. Every cable is a subnet of its own.
    '';
    fabricInterfaces = mkOption {
      type = types.listOf types.str;
      default = [ ];
      example = [ "enp1s0f0np0" "enp1s0f1np1" ];
      description = ''
        Network interfaces of the fabric; `fabricInterfaces[i]` belongs to `hca[i]`
        (`ls /sys/class/infiniband/HCA/device/net`). Needed where `services.dsv41.fabric.enable` is on.
      '';
    };
    modelDir = opt types.str "/models/DeepSeek-V4.1-Flash" "Folder of the checkpoint, or where it is mounted.";
    rowsDir = opt types.str "/var/lib/dsv41/rows" "Folder of this node's packed Engram rows, on its NVMe.";
    ssh = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "root@spark1";
      description = "How `dsv41 doctor` reaches the node; null is its name. The units need no ssh.";
    };
    gidIndex = opt (types.nullOr types.int) null "GID index of RoCEv2 over IPv4, only to pin it.";
    ncclLibrary = opt (types.nullOr types.str) null "An NCCL of this node, mounted over the image's own.";
    memoryGib = opt (types.nullOr types.float) null "MemTotal in GiB, when it is less than 121.69.";
    reserveGib = opt types.float 0.0 "Memory in GiB that other programs on the node need.";
  };
in
{
  options.services.dsv41.nodes = mkOption {
    type = types.listOf (types.submodule node);
    example = [ ];
    description = "The nodes of the fleet, in the order of their ranks.";
  };
}
