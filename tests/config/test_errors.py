"""What is wrong with a configuration is told all at once, with locations, and the nearest right name."""

from runnel.config.errors import ConfigProblem, InvalidConfig, nearest


def test_every_problem_is_in_the_message_with_its_place() -> None:
    error = InvalidConfig([ConfigProblem("runnel.toml:3", "no"), ConfigProblem("--port", "never")])
    assert str(error) == "runnel.toml:3: no; --port: never"
    assert [one.where for one in error.problems] == ["runnel.toml:3", "--port"]
    assert error.code == "invalid_config"


def test_the_nearest_name_is_suggested_and_nothing_that_is_far() -> None:
    assert nearest("hsot", ["port", "host"]) == "; did you mean 'host'?"
    assert nearest("banana", ["port", "host"]) == ""
