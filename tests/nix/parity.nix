# Cases that nixpkgs.lib and the stand-in's lib must answer alike; parity.json holds the answers.
# The flake check `lib` runs them over whichever lib the flake was given, so with the real nixpkgs
# over the real one.
{ lib }:
let
  inherit (lib)
    mkDefault
    mkForce
    mkIf
    mkMerge
    mkOption
    types
    ;

  option = type: default: mkOption { inherit type default; };
  node =
    { name, config, ... }:
    {
      options = {
        ip = mkOption { type = types.str; };
        who = option types.str "${name}@${config.ip}";
      };
    };
  base.options.a = {
    e = lib.mkEnableOption "x";
    n = option (types.ints.between 0 3) 1;
    s = option (types.nullOr types.str) null;
    l = option (types.listOf types.str) [ ];
    m = option (types.attrsOf (types.oneOf [ types.int types.str types.bool ])) { };
    t = option types.lines "";
    p = option types.port 8888;
    k = option (types.enum [ "a" "b" ]) "a";
    nodes = option (types.attrsOf (types.submodule node)) { };
  };
  free.config._module.freeformType = types.lazyAttrsOf types.anything;

  # the configuration of the base options with further modules
  ev = modules: (lib.evalModules { modules = [ base ] ++ modules; }).config;
  a = modules: (ev modules).a;
  # "error" where forcing the value throws
  refused =
    x:
    let
      r = builtins.tryEval (builtins.deepSeq x x);
    in
    if r.success then r.value else "error";
in
{
  # priorities, conditions, merging
  defaults = a [ ];
  order = (a [ { a.l = [ "1" ]; } { a.l = [ "2" ]; } ]).l;
  condition = a [
    (
      { config, ... }:
      {
        a = mkIf config.a.e {
          l = [ "x" ];
          s = "y";
        };
      }
    )
    { a.e = true; }
  ];
  merge = (a [ { a = mkMerge [ { t = "one"; } (mkIf false { t = "no"; }) { t = "two"; } ]; } ]).t;
  prio = (a [ { a.n = mkDefault 2; } { a.n = 3; } ]).n;
  prioMap =
    (a [
      { a.m.X = mkDefault 2; }
      {
        a.m = {
          X = "3";
          Y = mkIf false 1;
        };
      }
      { a.m.Z = true; }
    ]).m;
  force = (a [ { a.n = mkForce 2; } { a.n = 3; } ]).n;
  sub =
    (a [
      { a.nodes.n1.ip = "10.0.0.1"; }
      {
        a.nodes.n2 = {
          ip = "x";
          who = "me";
        };
      }
    ]).nodes;

  # modules: arguments, imports, freeform
  args = (a [ { _module.args.z = 2; } ({ z, ... }: { a.n = z; }) ]).n;
  imports = (a [ { imports = [ { a.n = 0; } ]; } ]).n;
  free =
    (ev [
      free
      { q.r.s = 1; }
      { q.r.t = [ 1 ]; }
      { q.r.u = mkIf true 3; }
      { q.r.v = mkIf false 3; }
    ]).q;

  # what is refused: two lists under a freeform type, wrong values, an unknown option, a conflict,
  # no value
  e0 = refused (ev [ free { q.r.t = [ 1 ]; } { q.r.t = [ 2 ]; } ]).q;
  e1 = refused (a [ { a.n = 4; } ]).n;
  e2 = refused (a [ { a.zz = 4; } ]).n;
  e3 = refused (a [ { a.s = 4; } ]).s;
  e4 = refused (a [ { a.n = 2; } { a.n = 3; } ]).n;
  e5 = refused (a [ { a.nodes.x = { }; } ]).nodes;
  e6 = refused (a [ { a.k = "c"; } ]).k;
  e7 = refused (a [ { a.m.x = { }; } ]).m;
  e8 = refused (a [ { a.p = 70000; } ]).p;

  # strings, lists, sets
  shell = lib.escapeShellArgs [ "a b" "c'd" "e=f" "" "-x" "{}" ];
  infix = map (lib.hasInfix "a.b") [ "xa.by" "xaxby" ];
  suffix = map (lib.hasSuffix ".whl") [ "a.whl" "whl" "a.whl.gz" ];
  str = [
    (lib.splitString "." "a.b.c")
    (lib.removePrefix "sha256:" "sha256:ab")
    (lib.toInt "12")
    (lib.concatMapStringsSep "," toString (lib.range 1 3))
    (lib.concatLines [ "one" "two" ])
  ];
  versions = map (v: lib.versionAtLeast v "2.10") [ "2.9" "2.10" "2.10.1" "3" ];
  sets = [
    (lib.mapAttrsToList (n: v: "${n}=${v}") { b = "2"; a = "1"; })
    (lib.filterAttrs (n: _: n != "a") { a = 1; b = 2; })
    (lib.recursiveUpdate { a.b = 1; a.c = 2; } { a.b = 3; })
    (lib.attrByPath [ "a" "b" ] 0 { a.c = 1; })
  ];
  lists = [
    (lib.unique [ 1 2 1 ])
    (lib.flatten [ 1 [ 2 [ 3 ] ] ])
    (lib.findFirst (x: x > 1) 0 [ 1 2 3 ])
    (lib.optionals false [ 1 ])
  ];
}
