# A small module system: as much of nixpkgs' evalModules as ../parity.nix shows to behave alike.
{ lib }:
let
  inherit (builtins)
    attrNames
    concatLists
    concatStringsSep
    elem
    elemAt
    filter
    foldl'
    functionArgs
    genList
    head
    isAttrs
    isBool
    isFloat
    isFunction
    isInt
    isList
    isPath
    isString
    length
    map
    mapAttrs
    removeAttrs
    toJSON
    ;
  inherit (lib)
    concatMapStringsSep
    findFirst
    genAttrs
    hasPrefix
    imap0
    isDerivation
    last
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

  wrongType = loc: name: throw "A definition for option `${show loc}' is not of type `${name}'";
  mergeEqual =
    loc: name: check: vs:
    if !builtins.all (x: x == head vs) vs then
      throw "The option `${show loc}' has conflicting definition values"
    else if !check (head vs) then
      wrongType loc name
    else
      head vs;
  simple = name: check: {
    inherit name check;
    merge = loc: mergeEqual loc name check;
  };

  types = rec {
    bool = simple "boolean" isBool;
    str = simple "string" isString;
    int = simple "signed integer" isInt;
    float = simple "floating point number" isFloat;
    path = simple "path" (v: isPath v || isDerivation v || (isString v && hasPrefix "/" v));
    package = simple "package" (v: isAttrs v && v ? outPath || (isString v && hasPrefix "/" v));
    raw = simple "raw value" (_: true);
    enum = vs: simple "one of ${concatMapStringsSep ", " toJSON vs}" (v: elem v vs);
    port = ints.between 0 65535;
    ints = {
      between =
        a: b:
        simple "integer between ${toString a} and ${toString b} (both inclusive)" (
          v: isInt v && v >= a && v <= b
        );
      positive = simple "positive integer, meaning >0" (v: isInt v && v > 0);
      unsigned = simple "unsigned integer, meaning >=0" (v: isInt v && v >= 0);
    };
    lines = {
      name = "strings concatenated with \"\\n\"";
      check = isString;
      merge = _: concatStringsSep "\n";
    };
    oneOf = ts: rec {
      name = concatMapStringsSep " or " (t: t.name) ts;
      check = v: builtins.any (t: t.check v) ts;
      merge =
        loc: vs: (findFirst (t: builtins.all t.check vs) (wrongType loc name) ts).merge loc vs;
    };
    either = a: b: oneOf [ a b ];
    nullOr = t: {
      name = "null or ${t.name}";
      check = v: v == null || t.check v;
      merge = loc: vs: if builtins.all (v: v == null) vs then null else t.merge loc vs;
    };
    listOf = t: rec {
      name = "list of ${t.name}";
      check = isList;
      merge =
        loc: vs:
        let
          item = i: x: map (v: t.merge (loc ++ [ "[${toString i}]" ]) [ v ]) (strongest (discharge x));
        in
        if !builtins.all isList vs then
          wrongType loc name
        else
          concatLists (map (v: concatLists (imap0 item v)) vs);
    };
    attrsOf = t: rec {
      name = "attribute set of ${t.name}";
      check = isAttrs;
      merge =
        loc: vs:
        let
          plain = concatLists (map pushDown vs);
          defs = n: concatLists (map (v: if v ? ${n} then discharge v.${n} else [ ]) plain);
          names = filter (n: defs n != [ ]) (unique (concatLists (map attrNames plain)));
        in
        if !builtins.all isAttrs vs then
          wrongType loc name
        else
          genAttrs names (n: t.merge (loc ++ [ n ]) (strongest (defs n)));
    };
    lazyAttrsOf = attrsOf;
    attrs = attrsOf anything;
    # lists are not concatenated: two definitions of one list are a conflict, as in nixpkgs
    anything = {
      name = "anything";
      check = _: true;
      merge =
        loc: vs:
        if builtins.all (v: isAttrs v && !isDerivation v) vs then
          (attrsOf anything).merge loc vs
        else
          mergeEqual loc "anything" (_: true) vs;
    };
    unspecified = anything;
    submodule = m: {
      name = "submodule";
      check = v: isAttrs v || isFunction v;
      merge =
        loc: vs:
        (evalModules {
          modules = [
            m
            { _module.args.name = last loc; }
          ] ++ vs;
          prefix = loc;
        }).config;
    };
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
          given = genAttrs (attrNames (functionArgs f)) (n: specialArgs.${n} or own.${n} or args.${n});
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
          free = n: types.anything.merge (loc ++ [ n ]) (strongest (concatLists (map discharge (at n))));
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
