# The option types of the module system: `merge` makes one value of the definitions that count.
{
  lib,
  discharge,
  evalModules,
  pushDown,
  show,
  strongest,
}:
let
  inherit (builtins)
    attrNames
    concatLists
    concatStringsSep
    elem
    filter
    head
    isAttrs
    isBool
    isFloat
    isFunction
    isInt
    isList
    isPath
    isString
    map
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
    unique
    ;

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
in
rec {
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
    getSubOptions = t.getSubOptions or (_: { });
    check = isList;
    merge =
      loc: vs:
      let
        at = i: loc ++ [ "[${toString i}]" ];
        item = i: x: map (v: t.merge (at i) [ v ]) (strongest (discharge x));
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
    getSubOptions =
      prefix:
      (evalModules {
        inherit prefix;
        modules = [ m ];
      }).options;
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
}
