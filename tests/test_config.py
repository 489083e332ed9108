"""Settings: sources, precedence, refusals, baked settings, and the page that lists them."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from rmqstore.config import CONTROL_VARIABLES, Config, load
from rmqstore.contract import EngineOptions, Flush, InitMode, PopBuffer, Setting
from rmqstore.errors import ConfigError
from rmqstore.settings import CORE_SETTINGS, DEFAULT, Origin, Source, Value, allowed, check_engine_settings, checked, parsed
from rmqstore.store.opening import pop_buffer_of

ACME = (
    Setting("acme.values", str, "inline", "Where values go.", choices=("inline", "separated"), baked=True),
    Setting("acme.cache.size_mb", int, 64, "Cache.", minimum=1, maximum=4096),
    Setting("acme.verify", bool, False, "Check more."),
)
ENGINES = {"acme": ACME, "plain": ()}
ROOT = Path(__file__).parent.parent


def read(directory: Path, environ: dict[str, str] | None = None, **keywords: object) -> Config:
    return load(directory, keywords, ENGINES, environ or {})


def write(directory: Path, text: str, name: str = "rmqstore.toml") -> Path:
    path = directory / name
    path.write_text(text)
    return path


# ---------------------------------------------------------------- defaults and types


def test_defaults(tmp_path: Path) -> None:
    config = load(tmp_path / "not there yet", environ={})
    assert (config.engine, config.timer_engine, config.pop_engine) == ("", "", "")
    assert config.flush is Flush.SYNC
    assert config.init is InitMode.MIN
    assert config.precision_ms == 1000
    assert config.cancel_memory_ms == 24 * 3600 * 1000
    assert config.outcome_memory_ms == 10 * 60 * 1000
    assert config.mark_memory_ms == 7 * 24 * 3600 * 1000
    assert config.retry_share == 0.2
    assert config.clock_max_step_ms == 0
    assert set(config.origins.values()) == {DEFAULT}
    assert config.engine_options("acme") == {}


@pytest.mark.parametrize("setting", CORE_SETTINGS, ids=lambda setting: setting.key)
def test_every_default_passes_its_own_check(setting: Setting) -> None:
    assert checked(setting, setting.default, DEFAULT) == setting.default
    assert setting.doc.endswith(".")


def test_every_core_setting_has_a_field_of_its_own() -> None:
    fields = set(Config.__struct_fields__) - {"values", "origins", "known"}
    assert fields == {setting.key.replace(".", "_") for setting in CORE_SETTINGS}


def test_core_defaults_agree_with_the_contract() -> None:
    defaults = {setting.key: setting.default for setting in CORE_SETTINGS}
    options = EngineOptions(store_tag=1, broker="b")
    shared = set(EngineOptions.__struct_fields__) - {"store_tag", "broker", "min_epoch", "engine", "pop_buffer"}
    values = {"pop.flush" if key == "pop_flush" else key: getattr(options, key) for key in shared}
    assert {key: value.value if isinstance(value, Enum) else value for key, value in values.items()} == {
        key: defaults[key] for key in values
    }
    limits = PopBuffer()
    assert not defaults["pop.buffer"]
    assert {f"pop.buffer_{name}": getattr(limits, name) for name in limits.__struct_fields__} == {
        key: value for key, value in defaults.items() if key.startswith("pop.buffer_")
    }


def test_the_limits_of_the_pop_buffer_reach_the_engine(tmp_path: Path) -> None:
    assert pop_buffer_of(read(tmp_path, pop__buffer_stay_ms=5)) is None
    limits = {"stay_ms": 5, "left_ms": 6, "check_points": 7, "queue_check_points": 8}
    keywords = {f"pop__buffer_{name}": value for name, value in limits.items()}
    assert pop_buffer_of(read(tmp_path, pop__buffer=True, **keywords)) == PopBuffer(**limits)


def test_a_config_is_frozen(tmp_path: Path) -> None:
    config = read(tmp_path)
    with pytest.raises(AttributeError):
        config.flush = Flush.ASYNC  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.values["flush"] = "async"  # type: ignore[index]


def test_enum_members_and_timedeltas_are_taken_as_keywords(tmp_path: Path) -> None:
    config = read(tmp_path, flush=Flush.ASYNC, init=InitMode.MAX, cancel_memory_ms=timedelta(hours=1, milliseconds=1), retry_share=1)
    assert config.flush is Flush.ASYNC
    assert config.init is InitMode.MAX
    assert config.cancel_memory_ms == 3_600_001
    assert config.retry_share == 1.0
    assert type(config.retry_share) is float


def test_a_keyword_that_is_none_counts_as_not_given(tmp_path: Path) -> None:
    write(tmp_path, "flush = 'async'")
    assert read(tmp_path, flush=None).flush is Flush.ASYNC


# ---------------------------------------------------------------- precedence


def test_later_sources_win_one_by_one(tmp_path: Path) -> None:
    inside = write(tmp_path, "flush_interval_ms = 1\nmax_retries = 1\nhand_over_limit = 1\ndefault_queues = 1\n")
    named = write(tmp_path, "flush_interval_ms = 2\nmax_retries = 2\nhand_over_limit = 2\n", "other.toml")
    environ = {"RMQSTORE_CONFIG": str(named), "RMQSTORE_FLUSH_INTERVAL_MS": "3", "RMQSTORE_MAX_RETRIES": "3"}
    config = read(tmp_path, environ, flush_interval_ms=4)
    assert (config.flush_interval_ms, config.max_retries, config.hand_over_limit, config.default_queues) == (4, 3, 2, 1)
    assert config.origins["flush_interval_ms"] == Origin(Source.KEYWORD, "flush_interval_ms")
    assert config.origins["max_retries"] == Origin(Source.ENVIRONMENT, "RMQSTORE_MAX_RETRIES")
    assert config.origins["hand_over_limit"] == Origin(Source.CONFIG_FILE, str(named))
    assert config.origins["default_queues"] == Origin(Source.STORE_FILE, str(inside))
    assert config.origins["precision_ms"] == DEFAULT
    assert config.is_given("max_retries")
    assert not config.is_given("precision_ms")


def test_dotted_keys_and_engine_tables_in_all_forms(tmp_path: Path) -> None:
    write(tmp_path, "[clock]\nmax_step_ms = 1\n[acme]\nverify = true\n[acme.cache]\nsize_mb = 2\n")
    config = read(tmp_path)
    assert config.clock_max_step_ms == 1
    assert config.engine_options("acme") == {"values": "inline", "cache.size_mb": 2, "verify": True}
    environ = {"RMQSTORE_CLOCK__MAX_STEP_MS": "3", "RMQSTORE_ACME__CACHE__SIZE_MB": "4", "RMQSTORE_ACME__VERIFY": "False"}
    config = read(tmp_path, environ)
    assert config.clock_max_step_ms == 3
    assert config.engine_options("acme") == {"values": "inline", "cache.size_mb": 4, "verify": False}
    config = read(tmp_path, environ, clock__max_step_ms=timedelta(seconds=5), acme__cache__size_mb=6, acme__verify=True)
    assert config.clock_max_step_ms == 5000
    assert config.engine_options("acme") == {"values": "inline", "cache.size_mb": 6, "verify": True}
    assert config.engine_options("plain") == {}


def test_engine_stands_for_both_halves_unless_one_is_named(tmp_path: Path) -> None:
    write(tmp_path, "timer_engine = 'acme'")
    config = read(tmp_path, {"RMQSTORE_ENGINE": "plain"})
    assert (config.timer_engine, config.pop_engine) == ("acme", "plain")
    assert config.origins["pop_engine"] == Origin(Source.ENVIRONMENT, "RMQSTORE_ENGINE")
    assert config.with_default_engine(_never) is config


def _never() -> str:
    raise AssertionError("both engines are named")


def test_the_default_engine_is_asked_for_what_is_not_named(tmp_path: Path) -> None:
    config = read(tmp_path, pop_engine="plain").with_default_engine(lambda: "acme")
    assert (config.timer_engine, config.pop_engine) == ("acme", "plain")
    assert not config.is_given("timer_engine")


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    environ = {"RMQSTORE_FLUSH": "", "RMQSTORE_CONFIG": "", "RMQSTORE_STRICT_PLUGINS": "1", "RMQSTORED": "another program's"}
    assert read(tmp_path, environ).origins["flush"] == DEFAULT


def test_the_process_environment_is_read_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in CONTROL_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("RMQSTORE_MAX_RETRIES", "5")
    assert load(tmp_path).max_retries == 5


# ---------------------------------------------------------------- refusals

REFUSED_KEYWORDS = [
    # The property below has more values of wrong types and sizes.
    ({"max_retries": True}, "keyword argument max_retries: max_retries must be a whole number from 0 to 1000, not True (bool)"),
    ({"acme__verify": 1}, "acme.verify must be true or false, not 1 (int)"),
    ({"acme__cache__size_mb": 4097}, "keyword argument acme__cache__size_mb: acme.cache.size_mb must be a whole number from 1 to 4096"),
    ({"retry_share": 10**400}, "retry_share must be a number from 0 to 1, not 1"),
    ({"flush": "snyc"}, "flush must be 'sync' or 'async', not 'snyc'"),
    ({"flush": InitMode.MIN}, "flush must be 'sync' or 'async'"),
    ({"cancel_memory_ms": timedelta(microseconds=1500)}, "cancel_memory_ms must be a whole number of ms"),
    ({"cancel_memory_ms": timedelta(seconds=-1)}, "cancel_memory_ms must be a whole number of ms from 0"),
    ({"max_retries": timedelta(seconds=1)}, "(timedelta)"),
    ({"flsh": "sync"}, "keyword argument flsh is unknown; did you mean flush?"),
    ({"clock_max_step_ms": 5}, "keyword argument clock_max_step_ms is unknown; did you mean clock__max_step_ms?"),
    ({"acme__value": "x"}, "keyword argument acme__value is unknown; did you mean acme__values?"),
    ({"qqq": 1}, "keyword argument qqq is unknown; docs/configuration.md lists the settings"),
]
REFUSED_VARIABLES = [
    ("MAX_RETRIES", "many", "environment variable RMQSTORE_MAX_RETRIES: max_retries must be a whole number from 0 to 1000, not 'many'"),
    ("MAX_RETRIES", "1.5", "not '1.5'"),
    ("RETRY_SHARE", "nan", "retry_share must be a number from 0 to 1, not nan"),
    ("ACME__VERIFY", "maybe", "acme.verify must be true or false, not 'maybe'"),
    ("PRECISION_MS", "300", "must be 1000, 500, 200 or 100, not 300"),
    ("FLSH", "sync", "environment variable RMQSTORE_FLSH is unknown; did you mean RMQSTORE_FLUSH?"),
    ("flush", "sync", "environment variable RMQSTORE_flush is unknown"),
]
REFUSED_FILES = [
    ("flush =", "is not a TOML file: "),
    ("flush = 'sync'\nflush = 'async'", "is not a TOML file: "),
    ("max_retries = '5'", "max_retries must be a whole number from 0 to 1000, not '5' (str)"),
    ("max_retries = [5]", "(list)"),
    ("cancel_memory_ms = 2026-01-01", "(date)"),
    ("flsh = 'sync'", "setting flsh is unknown; did you mean flush?"),
    ("[clock]\nmax_stp_ms = 1", "setting clock.max_stp_ms is unknown; did you mean clock.max_step_ms?"),
    ("[acmee]\nx = 1", "table [acmee] is unknown; did you mean acme?; known tables: [acme], [acme.cache], [clock], [plain]"),
    ("[acme.cash]\nsize_mb = 1", "table [acme.cash] is unknown; did you mean acme.cache?"),
    ("[flush]\nx = 1", "flush must be 'sync' or 'async'"),
    ("clock = 5", "clock is a table; write [clock]"),
    ("plain = 5", "plain is a table"),
    ('"clock.max_step_ms" = 5', "the name 'clock.max_step_ms' holds a dot"),
    ("engine = 'plain'\n[acme]\nvalues = 'x'", "acme.values must be 'inline' or 'separated', not 'x'"),
]


@pytest.mark.parametrize(("keywords", "sentence"), REFUSED_KEYWORDS, ids=str)
def test_a_bad_keyword_is_refused_in_one_sentence(tmp_path: Path, keywords: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, {}, **keywords)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("variable", "text", "sentence"), REFUSED_VARIABLES)
def test_a_bad_variable_is_refused_in_one_sentence(tmp_path: Path, variable: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, {f"RMQSTORE_{variable}": text})
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("text", "sentence"), REFUSED_FILES)
def test_a_bad_file_is_refused_naming_its_path(tmp_path: Path, text: str, sentence: str) -> None:
    for name, environ in (("rmqstore.toml", {}), ("named.toml", {"RMQSTORE_CONFIG": str(tmp_path / "named.toml")})):
        path = write(tmp_path, text, name)
        with pytest.raises(ConfigError) as caught:
            read(tmp_path, environ)
        assert str(caught.value).startswith(str(path))
        assert sentence in str(caught.value)
        path.unlink()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "rmqstore.toml").write_bytes(b"engine = '\xff'")
    with pytest.raises(ConfigError, match=r"rmqstore\.toml is not a TOML file: .*utf-8"):
        read(tmp_path)
    (tmp_path / "rmqstore.toml").unlink()
    (tmp_path / "rmqstore.toml").mkdir()
    with pytest.raises(ConfigError, match=r"rmqstore\.toml cannot be read: Is a directory"):
        read(tmp_path)
    with pytest.raises(ConfigError, match=r"RMQSTORE_CONFIG names /no/such/file, which does not exist"):
        read(tmp_path / "elsewhere", {"RMQSTORE_CONFIG": "/no/such/file"})


# ---------------------------------------------------------------- baked settings


def test_baked_settings_of_the_store_and_its_engines_are_stored(tmp_path: Path) -> None:
    assert read(tmp_path, engine="acme", precision_ms=200).baked() == {
        "timer_engine": "acme",
        "pop_engine": "acme",
        "precision_ms": 200,
        "acme.values": "inline",
    }
    assert "acme.values" not in read(tmp_path, engine="plain").baked()


def test_what_is_stored_is_taken_when_nothing_is_given(tmp_path: Path) -> None:
    stored = {"timer_engine": "acme", "pop_engine": "plain", "precision_ms": 200, "acme.values": "separated", "gone.since": 1}
    config = read(tmp_path, max_retries=3).with_stored(stored, "/data/store")
    assert (config.timer_engine, config.pop_engine, config.precision_ms, config.max_retries) == ("acme", "plain", 200, 3)
    assert config.engine_options("acme")["values"] == "separated"
    assert config.origins["precision_ms"] == Origin(Source.STORED, "/data/store")
    assert not config.is_given("precision_ms")
    assert config.baked() == {key: value for key, value in stored.items() if key != "gone.since"}


@pytest.mark.parametrize(
    ("keywords", "environ", "sentence"),
    [
        (
            {"precision_ms": 500},
            {},
            "precision_ms = 1000, which cannot change, and keyword argument precision_ms gives 500; leave it out, or use another directory",
        ),
        (
            {},
            {"RMQSTORE_ACME__VALUES": "separated"},
            "acme.values = 'inline', which cannot change, and environment variable RMQSTORE_ACME__VALUES",
        ),
        ({"engine": "plain"}, {}, "timer_engine = 'acme', which cannot change, and keyword argument engine gives 'plain'"),
    ],
)
def test_what_is_given_otherwise_is_refused(tmp_path: Path, keywords: dict[str, object], environ: dict[str, str], sentence: str) -> None:
    stored = read(tmp_path, engine="acme").baked()
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, environ, **keywords).with_stored(stored, "/data/store")
    assert str(caught.value).startswith("store /data/store was made with ")
    assert sentence in str(caught.value)


def test_a_stored_value_that_no_longer_is_allowed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="store /data/store: precision_ms must be 1000, 500, 200 or 100, not 7"):
        read(tmp_path).with_stored({"precision_ms": 7}, "/data/store")


# ---------------------------------------------------------------- engines' declarations


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (Setting("size", int, 1, ""), "declares the setting 'size'"),
        (Setting("acme.", int, 1, ""), "declares the setting 'acme.'"),
        (Setting("acme.Size", int, 1, ""), "declares the setting 'acme.Size'"),
        (Setting("acme.a__b", int, 1, ""), "declares the setting 'acme.a__b'"),
        (Setting("acme.size", int, "x", ""), "engine 'acme': acme.size must be a whole number, not 'x' (str)"),
    ],
)
def test_a_malformed_declaration_is_refused(setting: Setting, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_engine_settings("acme", [setting])
    assert sentence in str(caught.value)


def test_a_setting_declared_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        check_engine_settings("acme", [ACME[0], ACME[0]])


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (Setting("a.b", int, 1, "", minimum=1), "a whole number of at least 1"),
        (Setting("a.b", float, 1.0, "", maximum=0.5), "a number of at most 0.5"),
        (Setting("a.b", float, 1.0, ""), "a number"),
        (Setting("a.b_ms", int, 1, "", minimum=0, maximum=5), "a whole number of ms from 0 to 5"),
        (Setting("a.b", str, "x", "", choices=("x",)), "'x'"),
    ],
)
def test_what_is_allowed_in_words(setting: Setting, words: str) -> None:
    assert allowed(setting) == words


# ---------------------------------------------------------------- properties

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=4),
    st.timedeltas(),
    st.lists(st.integers(), max_size=2),
)


@given(setting=st.sampled_from([*CORE_SETTINGS, *ACME]), value=ANYTHING)
def test_a_value_is_either_refused_or_of_the_declared_type_and_range(setting: Setting, value: object) -> None:
    try:
        result = checked(setting, value, DEFAULT)
    except ConfigError as error:
        sentence = str(error)
    else:
        sentence = ""
    if sentence:
        assert sentence.startswith(f"the default: {setting.key} must be {allowed(setting)}, not ")
        return
    assert type(result) is setting.type
    if not isinstance(result, str):
        assert setting.minimum is None or setting.minimum <= result
        assert setting.maximum is None or result <= setting.maximum
    assert not setting.choices or result in setting.choices
    assert checked(setting, result, DEFAULT) == result


def values_of(setting: Setting) -> st.SearchStrategy[Value]:
    if setting.choices:
        return st.sampled_from(setting.choices)
    if setting.type is bool:
        return st.booleans()
    if setting.type is str:
        return st.sampled_from(["acme", "plain"])
    if setting.type is float:
        return st.floats(setting.minimum, setting.maximum)
    return st.integers(int(setting.minimum or 0), int(setting.maximum or 0))


@given(st.sampled_from([*CORE_SETTINGS, *ACME]).flatmap(lambda setting: st.tuples(st.just(setting), values_of(setting))))
def test_all_forms_of_a_value_read_the_same(case: tuple[Setting, Value]) -> None:
    setting, value = case
    keyword = {setting.key.replace(".", "__"): value}
    text = str(value)
    variable = {"RMQSTORE_" + setting.key.upper().replace(".", "__"): text}
    given_by = [load("/no/such/store", keyword, ENGINES, {}), load("/no/such/store", {}, ENGINES, variable)]
    assert [config.values[setting.key] for config in given_by] == [value, value]
    assert all(config.is_given(setting.key) for config in given_by)
    assert parsed(setting, text, DEFAULT) == value


# ---------------------------------------------------------------- the page


def test_the_configuration_page_is_current() -> None:
    script = ROOT / "docs" / "make_configuration.py"
    made = subprocess.run([sys.executable, str(script), "-"], capture_output=True, text=True, check=True).stdout
    page = ROOT / "docs" / "configuration.md"
    assert page.read_text() == made, "run: python docs/make_configuration.py"
    for setting in CORE_SETTINGS:
        assert f"`{setting.key}`" in made
