# A small module system: as much of nixpkgs' evalModules as ../parity.nix shows to behave alike.
{ lib }:
let
  inherit (builtins)
    attrNames
    concatLists
    concatStringsSep
    elemAt
    filter
    foldl'
    functionArgs
    genList
    head
    isAttrs
    isFunction
    isPath
    isString
    length
    map
    mapAttrs
    removeAttrs
    ;
  inherit (lib)
    findFirst
    genAttrs
    optional
    recursiveUpdate
    unique
    ;

  show = concatStringsSep ".";
  tagOf = v: v._type or null;

  mkOption = o: o // { _type = "option"; };
  mkIf = condition: content: {
    _type = "if";
    inherit condition content;
  };
  mkMerge = contents: {
    _type = "merge";
    inherit contents;
  };
  mkOverride = priority: content: {
    _type = "override";
    inherit priority content;
  };

  # a value -> its definitions [ { prio, value } ]; a plain one has priority 100
  discharge =
    v:
    if tagOf v == "if" then
      (if v.condition then discharge v.content else [ ])
    else if tagOf v == "merge" then
      concatLists (map discharge v.contents)
    else if tagOf v == "override" then
      map (d: d // { prio = v.priority; }) (discharge v.content)
    else
      [
        {
          prio = 100;
          value = v;
        }
      ];

  # the values whose priority is the least number
  strongest =
    defs:
    let
      least = foldl' (a: d: if d.prio < a then d.prio else a) 9999 defs;
    in
    map (d: d.value) (filter (d: d.prio == least) defs);

  # mkIf, mkMerge and mkOverride around a set move below its attribute names: -> [ plain sets ]
  pushDown =
    v:
    if tagOf v == "if" then
      map (mapAttrs (_: mkIf v.condition)) (pushDown v.content)
    else if tagOf v == "merge" then
      concatLists (map pushDown v.contents)
    else if tagOf v == "override" then
      map (mapAttrs (_: mkOverride v.priority)) (pushDown v.content)
    else
      [ v ];

  types = import ./types.nix {
    inherit
      lib
      discharge
      evalModules
      pushDown
      show
      strongest
      ;
  };

  evalModules =
    {
      modules,
      specialArgs ? { },
      prefix ? [ ],
    }:
    let
      own = { inherit lib config options; };

      # a module (path, function or set) -> [ { options, config } ], its imports first
      load =
        m:
        let
          f = if isPath m || isString m then import m else m;
          argument = n: specialArgs.${n} or own.${n} or args.${n};
          given = genAttrs (attrNames (functionArgs f)) argument;
          v = if isFunction f then f (given // own // specialArgs) else f;
          isFull = v ? config || v ? options || v ? imports;
          body = if isFull then v.config or { } else removeAttrs v [ "_module" "imports" ];
        in
        concatLists (map load (v.imports or [ ]))
        ++ [
          {
            options = v.options or { };
            config = pushDown body ++ optional (v ? _module) { inherit (v) _module; };
          }
        ];

      # the list items of later modules come first, as in nixpkgs
      reverse = l: genList (i: elemAt l (length l - i - 1)) (length l);
      loaded = reverse (concatLists (map load modules));
      configs = concatLists (map (m: m.config) loaded);
      options = foldl' recursiveUpdate { } (map (m: m.options) loaded);

      moduleDefs = map (c: c._module) (filter (c: c ? _module) configs);
      args = foldl' (
        a: m: a // mapAttrs (_: v: head (strongest (discharge v))) (m.args or { })
      ) { } moduleDefs;
      freeform = findFirst (t: t != null) null (map (m: m.freeformType or null) moduleDefs);

      noValue = loc: throw "The option `${show loc}' was accessed but has no value defined.";
      valueOf =
        loc: option: defs:
        let
          all =
            concatLists (map discharge defs)
            ++ optional (option ? default) {
              prio = 1500;
              value = option.default;
            };
          type = option.type or types.anything;
        in
        (option.apply or lib.id) (
          if all == [ ] then noValue loc else type.merge loc (strongest all)
        );

      build =
        loc: declared: cs:
        let
          plain = concatLists (map pushDown cs);
          at = n: concatLists (map (c: optional (c ? ${n}) c.${n}) plain);
          known = mapAttrs (
            n: o: (if tagOf o == "option" then valueOf else build) (loc ++ [ n ]) o (at n)
          ) declared;
          isTop = loc == prefix;
          unknown = filter (n: !(declared ? ${n}) && !(isTop && n == "_module")) (
            unique (concatLists (map attrNames plain))
          );
          definitions = n: strongest (concatLists (map discharge (at n)));
          free = n: types.anything.merge (loc ++ [ n ]) (definitions n);
        in
        if freeform != null && isTop then
          known // genAttrs unknown free
        else if unknown != [ ] then
          throw "The option `${show (loc ++ [ (head unknown) ])}' does not exist."
        else
          known;

      config = build prefix options configs;
    in
    {
      inherit config options;
    };
in
{
  inherit
    evalModules
    mkIf
    mkMerge
    mkOption
    mkOverride
    types
    ;
  mkDefault = mkOverride 1000;
  mkOptionDefault = mkOverride 1500;
  mkForce = mkOverride 50;
  mkEnableOption =
    what:
    mkOption {
      type = types.bool;
      default = false;
      description = "Whether to enable ${what}.";
    };
  literalExpression = text: {
    _type = "literalExpression";
    inherit text;
  };
}
