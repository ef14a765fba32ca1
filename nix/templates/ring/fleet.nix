# The fleet, the same on every node. The first port of each goes to the next one's second: subnets 40, 41, 42, 43.
{
  services.dsv41 = {
    enable = true;
    profile = "tp4-ring";
    topology = "ring";
    # NCCL starts over socketIfname on ports that the kernel picks. This opens every port there: turn it off, and open
    # the firewall for the nodes' addresses yourself, where that network holds more than the nodes
    fabric.trustSocketInterface = true;
    nodes = [
      {
        name = "spark1";
        address = "10.0.0.1";
        socketIfname = "enP7s7";
        hca = [ "mlx5_0" "mlx5_1" ];
        fabric = [ "10.0.40.1/24" "10.0.43.2/24" ];
        fabricInterfaces = [ "enp1s0f0np0" "enp1s0f1np1" ];
      }
      {
        name = "spark2";
        address = "10.0.0.2";
        socketIfname = "enP7s7";
        hca = [ "mlx5_0" "mlx5_1" ];
        fabric = [ "10.0.41.1/24" "10.0.40.2/24" ];
        fabricInterfaces = [ "enp1s0f0np0" "enp1s0f1np1" ];
      }
      {
        name = "spark3";
        address = "10.0.0.3";
        socketIfname = "enP7s7";
        hca = [ "mlx5_0" "mlx5_1" ];
        fabric = [ "10.0.42.1/24" "10.0.41.2/24" ];
        fabricInterfaces = [ "enp1s0f0np0" "enp1s0f1np1" ];
      }
      {
        name = "spark4";
        address = "10.0.0.4";
        socketIfname = "enP7s7";
        hca = [ "mlx5_0" "mlx5_1" ];
        fabric = [ "10.0.43.1/24" "10.0.42.2/24" ];
        fabricInterfaces = [ "enp1s0f0np0" "enp1s0f1np1" ];
      }
    ];
  };
}
