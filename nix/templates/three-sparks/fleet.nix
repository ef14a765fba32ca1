# The fleet, the same on every node. A cable is a subnet: spark1-spark2 12, spark1-spark3 13, spark2-spark3 23.
{
  services.dsv41 = {
    enable = true;
    profile = "tp3";
    topology = "triangle";
    # NCCL starts over socketIfname on ports that the kernel picks. This opens every port there: turn it off, and open
    # the firewall for the nodes' addresses yourself, where that network holds more than the nodes
    fabric.trustSocketInterface = true;
    nodes = [
      {
        name = "spark1";
        address = "10.0.0.1";
        socketIfname = "enP7s7";
        hca = [ "mlx5_0" "mlx5_1" ];
        fabric = [ "10.0.12.1/24" "10.0.13.1/24" ];
        fabricInterfaces = [ "enp1s0f0np0" "enp1s0f1np1" ];
      }
      {
        name = "spark2";
        address = "10.0.0.2";
        socketIfname = "enP7s7";
        hca = [ "mlx5_0" "mlx5_1" ];
        fabric = [ "10.0.12.2/24" "10.0.23.2/24" ];
        fabricInterfaces = [ "enp1s0f0np0" "enp1s0f1np1" ];
      }
      {
        name = "spark3";
        address = "10.0.0.3";
        socketIfname = "enP7s7";
        hca = [ "mlx5_0" "mlx5_1" ];
        fabric = [ "10.0.13.3/24" "10.0.23.3/24" ];
        fabricInterfaces = [ "enp1s0f0np0" "enp1s0f1np1" ];
      }
    ];
  };
}
