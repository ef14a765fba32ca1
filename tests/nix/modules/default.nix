# services.dsv41, evaluated on the fleets of the templates: { accepted = name -> does it hold?; refused = name -> is it?;
# plans = name -> the Plan's derivation; units = template -> what its head runs }.
{
  lib,
  pkgs,
  module,
  templates,
}:
let
  hosts =
    extra: fleet:
    (lib.evalModules {
      modules = [
        ./nixos.nix
        module
        fleet
        { _module.args.pkgs = pkgs; }
        {
          networking.hostName = lib.mkDefault "spark1";
          services.dsv41.image.reference = lib.mkDefault image;
        }
        extra
      ];
    }).config;
  three = extra: hosts extra (templates.three-sparks.path + "/fleet.nix");
  four = extra: hosts extra (templates.four-sparks.path + "/fleet.nix");
  ring = extra: hosts extra (templates.ring.path + "/fleet.nix");
  dsv41 = services: { services.dsv41 = services; };
  on = name: { networking.hostName = name; };

  failed = host: map (a: a.message) (lib.filter (a: !a.assertion) host.assertions);
  says = text: host: lib.any (lib.hasInfix text) (failed host);
  unit = host: host.systemd.services.dsv41-rank;
  start = host: (unit host).serviceConfig.ExecStart;

  planOf = extra: (three extra).services.dsv41.planCommand;

  head = three { };
  worker = three (on "spark3");
  distrust = dsv41 { fabric.trustSocketInterface = lib.mkForce false; };
  closed = three distrust;
  off = three (dsv41 { enable = lib.mkForce false; });
  keys = three (dsv41 { apiKeyFile = "/run/secrets/keys"; });
  nfs = {
    weights.nfs = {
      server = "10.0.0.1";
      serverNode = "spark1";
      clients = [ "10.0.0.0/24" ];
    };
  };
  image = "localhost/dsv41@sha256:${lib.concatStrings (lib.genList (_: "ab") 32)}";
  pulled = three (dsv41 {
    image.source = "oci:/var/lib/dsv41/image";
  });
in
{
  accepted = {
    three = failed head == [ ];
    four = failed (four { }) == [ ];
    ring = failed (ring { }) == [ ];
    rank-by-host-name = lib.hasSuffix "--rank 0" (start head) && lib.hasSuffix "--rank 2" (start worker);
    rank-by-option = lib.hasSuffix "--rank 1" (start (three (dsv41 { node = "spark2"; })));
    one-plan-for-all = head.services.dsv41.plan.drvPath == worker.services.dsv41.plan.drvPath;
    off-is-nothing = off.systemd.services == { } && off.assertions == [ ] && off.boot.kernelParams == [ ];
    memory-can-be-pinned = (unit head).serviceConfig.LimitMEMLOCK == "infinity";
    keys-by-credential =
      (unit keys).serviceConfig.LoadCredential == [ "api-keys:/run/secrets/keys" ]
      && (unit (three { imports = [ (on "spark2") (dsv41 { apiKeyFile = "/run/secrets/keys"; }) ]; })).serviceConfig.LoadCredential == [ ];
    control-key-by-credential =
      let
        rank = (unit (three (dsv41 { controlKeyFile = "/run/secrets/control"; }))).serviceConfig;
      in
      rank.LoadCredential == [ "control-key:/run/secrets/control" ]
      && lib.hasSuffix " --control-key %d/control-key" rank.ExecStart
      && !lib.hasInfix "control-key" (unit head).serviceConfig.ExecStart;
    warns-without-keys = lib.length head.warnings == 1 && keys.warnings == [ ];
    addresses =
      head.systemd.network.networks."40-dsv41-enp1s0f1np1".address == [ "10.0.13.1/24" ]
      && head.systemd.network.networks."40-dsv41-enp1s0f1np1".linkConfig.MTUBytes == "9000";
    # the Plan's rendezvous is an address of the management interface
    open-where-the-ranks-meet =
      head.networking.firewall.allowedTCPPorts == [ ]
      && head.networking.firewall.interfaces == { enP7s7.allowedTCPPorts = [ 20000 20001 ]; }
      && worker.networking.firewall.interfaces == { enP7s7.allowedTCPPorts = [ 20001 ]; };
    templates-trust-the-management-interface = lib.all (
      host: host.networking.firewall.trustedInterfaces == [ "enP7s7" ]
    ) [ head (four { }) (ring { }) ];
    warns-of-a-firewall-that-stops-nccl =
      lib.any (lib.hasInfix "does not trust enP7s7") closed.warnings
      && lib.length closed.warnings == 1 + lib.length head.warnings
      && closed.networking.firewall.trustedInterfaces == [ ]
      && (three { imports = [ distrust { networking.firewall.enable = false; } ]; }).warnings == head.warnings
      && (three { imports = [ distrust { networking.firewall.trustedInterfaces = [ "enP7s7" ]; } ]; }).warnings == head.warnings;
    waits-for-its-own-network-alone =
      !head.systemd.network.wait-online.enable
      && (three { networking.useNetworkd = true; }).systemd.network.wait-online.enable
      && (three { systemd.network.wait-online.enable = true; }).systemd.network.wait-online.enable
      && off.systemd.network.wait-online.enable;
    no-other-program-on-the-fabric =
      head.networking.dhcpcd.denyInterfaces == [ "enp1s0f0np0" "enp1s0f1np1" ]
      && head.networking.networkmanager.unmanaged == head.networking.dhcpcd.denyInterfaces;
    tries-again-without-failing = lib.all (
      name:
      let
        settings = pulled.systemd.services.${name}.serviceConfig;
      in
      [ "oneshot" "on-failure" "direct" ] == map (key: settings.${key} or "") [ "Type" "Restart" "RestartMode" ]
    ) [ "dsv41-rows" "dsv41-image" ];
    open-on-demand =
      (three (dsv41 { openFirewall = true; })).networking.firewall.allowedTCPPorts == [ 8888 ]
      && (three { imports = [ (on "spark2") (dsv41 { openFirewall = true; }) ]; }).networking.firewall.allowedTCPPorts == [ ];
    kexec-handover-off =
      head.boot.kernelParams == [ ]
      && (three { boot.kernelPackages.kernel.version = "7.0.0"; }).boot.kernelParams == [ "kho=off" ];
    fabric-of-ones-own =
      let
        own = three (dsv41 { fabric.enable = false; });
      in
      own.systemd.network.networks == { } && own.boot.kernel.sysctl == { } && !own.systemd.network.enable
      && own.systemd.network.wait-online.enable && own.networking.dhcpcd.denyInterfaces == [ ];
    nfs-server =
      let
        server = three (dsv41 nfs);
      in
      server.services.nfs.server.enable
      && server.fileSystems == { }
      && lib.elem 2049 server.networking.firewall.interfaces.enP7s7.allowedTCPPorts
      && (unit server).unitConfig.RequiresMountsFor == [ "/models/DeepSeek-V4.1-Flash" "/var/lib/dsv41/rows" ];
    nfs-client =
      let
        client = three { imports = [ (on "spark2") (dsv41 nfs) ]; };
      in
      !client.services.nfs.server.enable
      && client.fileSystems."/models/DeepSeek-V4.1-Flash".device == "10.0.0.1:/"
      && lib.all (
        unit:
        unit.unitConfig.RequiresMountsFor == [ "/var/lib/dsv41/rows" ]
        && unit.unitConfig.WantsMountsFor or [ ] == [ "/models/DeepSeek-V4.1-Flash" ]
      ) [ client.systemd.services.dsv41-rank client.systemd.services.dsv41-rows ];
    image-loaded-once = lib.hasInfix "image exists ${image} && exit 0" pulled.systemd.services.dsv41-image.script;
    metrics =
      (lib.head (three (dsv41 { observe.prometheus = true; })).services.prometheus.scrapeConfigs).static_configs
      == [ { targets = [ "10.0.0.1:8888" ]; } ];
    # nixos-dgx-spark sets these plainly; ours must give way
    gives-way =
      let
        theirs = three { virtualisation.podman.enable = true; hardware.nvidia-container-toolkit.enable = true; };
      in
      failed theirs == [ ];
  };

  refused = {
    unknown-host = says "this host is spark9, and the nodes are spark1, spark2, spark3" (three (on "spark9"));
    no-interfaces = says "fabricInterfaces" (
      three (dsv41 {
        nodes = lib.mkForce (
          map (n: removeAttrs n [ "fabricInterfaces" ]) (import (templates.three-sparks.path + "/fleet.nix")).services.dsv41.nodes
        );
      })
    );
    no-podman = says "virtualisation.podman.enable" (three { virtualisation.podman.enable = false; });
    no-toolkit = says "NVIDIA container toolkit" (three { hardware.nvidia-container-toolkit.enable = false; });
    keys-in-the-store = says "apiKeyFile is in the store" (three (dsv41 { apiKeyFile = "/nix/store/aaaa-keys"; }));
    control-key-in-the-store = says "controlKeyFile is in the store" (three (dsv41 { controlKeyFile = "/nix/store/aaaa-key"; }));
    image-in-the-store = says "image.source is in the store" (three (dsv41 { image.source = "oci:/nix/store/aaaa-image"; }));
    image-without-digest = says "has no digest" (three (dsv41 { image.reference = "localhost/dsv41:latest"; }));
    nfs-without-server = says "serverNode" (three (dsv41 { weights.nfs.server = "10.0.0.1"; }));
    nfs-for-everybody = says "weights.nfs.clients is empty" (three (dsv41 { weights.nfs = { server = "10.0.0.1"; serverNode = "spark1"; }; }));
    nfs-by-a-stranger = says "spark9" (three (dsv41 { weights.nfs = { server = "10.0.0.1"; serverNode = "spark9"; }; }));
    unknown-option = !(builtins.tryEval (builtins.deepSeq (start (three (dsv41 { rnak = 1; }))) true)).success;
    unknown-profile = !(builtins.tryEval (builtins.deepSeq (start (three (dsv41 { profile = lib.mkForce "tp5"; }))) true)).success;
  };

  plans = {
    three = head.services.dsv41.plan;
    four = (four { }).services.dsv41.plan;
    ring = (ring { }).services.dsv41.plan;
    with-everything = (three (dsv41 (nfs // { apiKeyFile = "/run/secrets/keys"; knobs.context = 131072; }))).services.dsv41.plan;
  };

  # commands that `dsv41 plan` must refuse with the code that is their name
  unplannable = {
    # two nodes of a triangle
    D102 = planOf (dsv41 {
      nodes = lib.mkForce (lib.take 2 (import (templates.three-sparks.path + "/fleet.nix")).services.dsv41.nodes);
    });
    # no such knob
    D095 = planOf (dsv41 { knobs.contxt = 131072; });
  };
  systemd = "${planOf { }} --format systemd";

  units = lib.genAttrs [ "dsv41-rank" "dsv41-rows" ] (
    name: head.systemd.services.${name}.serviceConfig // head.systemd.services.${name}.unitConfig
  );
}
