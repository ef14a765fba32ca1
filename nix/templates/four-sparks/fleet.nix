# The fleet, the same on every node. One port of each to the switch: its two functions are subnets 40 and 41.
{
  services.dsv41 = {
    enable = true;
    profile = "tp4";
    topology = "switch";
    # NCCL starts over socketIfname on ports that the kernel picks. This opens every port there: turn it off, and open
    # the firewall for the nodes' addresses yourself, where that network holds more than the nodes
    fabric.trustSocketInterface = true;
    nodes = [
      {
        name = "spark1";
        address = "10.0.0.1";
        socketIfname = "enP7s7";
        hca = [ "mlx5_0" "mlx5_2" ];
        fabric = [ "10.0.40.1/24" "10.0.41.1/24" ];
        fabricInterfaces = [ "enp1s0f0np0" "enP2p1s0f0np0" ];
      }
      {
        name = "spark2";
        address = "10.0.0.2";
        socketIfname = "enP7s7";
        hca = [ "mlx5_0" "mlx5_2" ];
        fabric = [ "10.0.40.2/24" "10.0.41.2/24" ];
        fabricInterfaces = [ "enp1s0f0np0" "enP2p1s0f0np0" ];
      }
      {
        name = "spark3";
        address = "10.0.0.3";
        socketIfname = "enP7s7";
        hca = [ "mlx5_0" "mlx5_2" ];
        fabric = [ "10.0.40.3/24" "10.0.41.3/24" ];
        fabricInterfaces = [ "enp1s0f0np0" "enP2p1s0f0np0" ];
      }
      {
        name = "spark4";
        address = "10.0.0.4";
        socketIfname = "enP7s7";
        hca = [ "mlx5_0" "mlx5_2" ];
        fabric = [ "10.0.40.4/24" "10.0.41.4/24" ];
        fabricInterfaces = [ "enp1s0f0np0" "enP2p1s0f0np0" ];
      }
    ];
  };
}
