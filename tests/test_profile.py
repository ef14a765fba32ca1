"""Profiles: the shipped ones parse; wrong ones are refused with file, key and what is allowed."""

from importlib.resources import files
from pathlib import Path

import pytest

from dsv41 import profile
from dsv41.errors import UsageError

LOCAL = files("dsv41.profiles").joinpath("local.toml").read_text()


def test_local_has_every_knob_of_its_engine_with_a_reason() -> None:
    local = profile.load("local")
    assert local.knobs.keys() == profile.KNOBS["local"].keys()
    assert all(len(knob.why) > 20 for knob in local.knobs.values())
    assert (local["tp"], local["slots"], local["max_new_tokens"]) == (3, 8, 32768)


def test_a_file_is_a_profile_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(LOCAL.replace("value = 8\n", "value = 4\n"))
    assert profile.load(str(path))["slots"] == 4


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("value = 3", "value = 9", "D095", ["knobs.tp", "9", "int from 1 to 8"]),
        ("value = 3", 'value = "3"', "D095", ["knobs.tp", "'3'"]),
        ("value = 3", "value = true", "D095", ["knobs.tp", "is true"]),
        ('"weighted"', '"round-robin"', "D095", ["knobs.partition", "'strided'", "'weighted'"]),
        ("[knobs.tp]", "[knobs.tpp]", "D095", ["knobs.tpp", "it has tp, "]),
        ('engine = "local"', 'engine = "llama"', "D095", ["engine", "llama", "local"]),
        ('says = "', 'sayz = "', "D095", ["says", "a string"]),
        ('name = "local"', "name = local", "D094", ["not TOML"]),
        ("why = ", "because = ", "D095", ["value and why, or omitted"]),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, code: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        profile.parse(LOCAL.replace(old, new, 1), where="p.toml")
    assert caught.value.code == code
    assert all(word in caught.value.says for word in ["p.toml", *words])


def test_a_missing_knob_is_an_error_and_an_omitted_one_is_not() -> None:
    start = LOCAL.index("[knobs.loop_abort]")
    with pytest.raises(UsageError, match=r"knobs\.loop_abort is 'missing'"):
        profile.parse(LOCAL[:start], where="p.toml")
    parsed = profile.parse(LOCAL[:start] + '[knobs.loop_abort]\nomitted = "no need"\n', where="p")
    assert parsed.knobs["loop_abort"].omitted
    with pytest.raises(KeyError):
        parsed["loop_abort"]


def test_a_whole_number_is_a_decimal_too() -> None:
    tp4 = profile.load("tp4")
    for value in (4, 4.0, 0.125):
        assert tp4.with_values("--set", row_cache_gib=value)["row_cache_gib"] == value
    for wrong in (True, 65, "4"):
        with pytest.raises(UsageError, match="row_cache_gib"):
            tp4.with_values("--set", row_cache_gib=wrong)


def test_flags_override_and_are_checked_alike() -> None:
    local = profile.load("local")
    assert local.with_values("--tp", tp=1)["tp"] == 1
    assert local.with_values("--tp", tp=None) == local
    with pytest.raises(UsageError, match=r"--tp: knobs\.tp is 0") as caught:
        local.with_values("--tp", tp=0)
    assert caught.value.fix == "give --tp 1"


def test_what_mends_a_knob_is_a_flag_or_the_persons_own_file() -> None:
    local = profile.load("local")
    own = profile.parse(LOCAL, where="mine.toml")
    assert local.mend("slots", 2) == "give --set slots=2"
    assert local.mend("loop_abort", False) == "give --set loop_abort=false"
    assert (
        own.mend("layout", "legal") == 'write layout = { value = "legal", why = ... } in mine.toml'
    )
    assert own.with_values("--tp", tp=2).mend("tp", 1) == "give --tp 1"
    assert own.with_values("--tp", tp=2).flags == {"tp": "--tp 2"}
    cycle = profile.load("tp4-cycle").with_values("--eager", eager=True)
    assert cycle.mend("eager", False) == "leave out --eager"


@pytest.mark.parametrize(("name", "code"), [("tp33", "D093"), ("./none.toml", "D094")])
def test_a_profile_that_is_not_there(name: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        profile.load(name)
    assert caught.value.code == code


def test_a_profile_that_is_not_there_is_one_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of that name where one lies here, else the nearest name."""
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(LOCAL)
    for name, fix in (
        ("mine", "take ./mine.toml"),
        ("tp33", "take tp3"),
        ("tp4-cycl", "take tp4-cycle"),
        ("zzz", "take one of local, tp3, tp4, tp4-cycle, tp4-ring"),
        ("x" * 5000, "take one of local, tp3, tp4, tp4-cycle, tp4-ring"),
        ("a\0b", "take one of local, tp3, tp4, tp4-cycle, tp4-ring"),
    ):
        with pytest.raises(UsageError, match="There is no profile") as caught:
            profile.load(name)
        assert (caught.value.code, caught.value.fix) == ("D093", fix)
