"""What the tests share."""

from pathlib import Path

from support import end_started, group_members, start_cli


def test_a_command_that_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    group = start_cli("app=train", cwd=tmp_path).pid
    assert group_members(group)
    end_started()  # as conftest.py does after each test
    assert not group_members(group)
