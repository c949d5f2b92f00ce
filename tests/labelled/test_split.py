"""The split: stated or hashed, never by chance, and no group on both sides."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from layactl.errors import InputError
from layactl.labelled.decisions import read_decisions
from layactl.labelled.split import Member, assign_splits, is_held_out
from tests.calib.examples import decision, jsonl


def member(record_id: str, group: str | None = None, stated: str | None = None) -> Member:
    return Member(record_id, group, stated, f"line of {record_id}")


@pytest.mark.parametrize("name", ["a", "t-17", "é", "漢字"])
def test_the_hash_is_sha256_of_kind_and_name_as_a_fraction(name: str):
    # The first eight bytes decide all but one case in 2^64.
    digest = hashlib.sha256(f"router:{name}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    assert is_held_out("router", name, share + 1e-9)
    assert not is_held_out("router", name, share - 1e-9)


# sha256("router:<id>") / 2^256, computed apart from the code.
SHARES = {"a": 0.7409900887934103, "b": 0.1466599976168511, "d": 0.32469195908074155, "g": 0.9628311398128717}


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.33, 0.75, 0.97])
def test_the_split_of_known_ids_never_changes(fraction: float):
    found = {name: is_held_out("router", name, fraction) for name in SHARES}
    assert found == {name: share < fraction for name, share in SHARES.items()}


def test_about_the_fraction_is_held_out():
    held = sum(is_held_out("decision", str(i), 0.3) for i in range(4000))
    assert abs(held / 4000 - 0.3) < 0.03


def test_all_or_nothing_can_be_held_out():
    assert not any(is_held_out("decision", str(i), 0.0) for i in range(50))
    assert all(is_held_out("decision", str(i), 1.0) for i in range(50))


def test_router_and_decision_records_of_one_id_are_hashed_apart():
    assert [is_held_out("router", str(i), 0.5) for i in range(40)] != [
        is_held_out("decision", str(i), 0.5) for i in range(40)
    ]


def test_a_group_never_straddles_the_split():
    members = [member(str(i), group=f"g{i % 30}") for i in range(300)]
    splits = assign_splits("decision", members, 0.3)
    by_group: dict[str | None, set[str]] = {}
    for m, split in zip(members, splits, strict=True):
        by_group.setdefault(m.group, set()).add(split)
    assert all(len(found) == 1 for found in by_group.values())
    assert {"fit"} in by_group.values() and {"eval"} in by_group.values()


def test_a_stated_split_wins_and_its_group_follows():
    members = [member("a", "g"), member("b", "g", "eval"), member("c", None, "fit"), member("d", "g")]
    assert assign_splits("decision", members, 0.0) == ["eval", "eval", "fit", "eval"]


def test_stated_splits_can_be_left_aside():
    assert assign_splits("decision", [member("a", None, "eval")], 0.0, stated=False) == ["fit"]


def test_a_group_stated_on_both_sides_is_refused_with_both_lines():
    with pytest.raises(InputError) as caught:
        assign_splits("decision", [member("a", "g", "fit"), member("b", "g", "eval")], 0.3)
    assert caught.value.message == "the group 'g' is in both splits: eval here, fit in line of a"
    assert caught.value.where == "line of b"


def test_an_id_and_a_group_of_the_same_name_are_two_clusters():
    assert member("g").cluster != member("a", "g").cluster


def test_data_states_its_split_and_group(tmp_path: Path):
    [record] = read_decisions(jsonl(tmp_path / "data.jsonl", [decision(7, group=3, split="eval")]))
    assert (record.member.id, record.member.group, record.member.stated) == ("7", "3", "eval")
