import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenancy.errors import InvalidKey
from gateway.tenancy.keys import ADMIN_PREFIX, KEY_CHARS, is_public_id, new_key, parse_key

PEPPER = b"p" * 32


def test_a_new_key_has_the_documented_form() -> None:
    key = new_key()
    assert re.fullmatch(r"tp-[a-z0-9]{12}-[A-Za-z0-9]{43}", key.plaintext)
    assert (key.public_id, key.last_four) == (key.plaintext[3:15], key.plaintext[-4:])
    assert parse_key(key.plaintext) == key


def test_the_secret_has_256_bits() -> None:
    assert 62**43 >= 2**256


def test_new_keys_differ() -> None:
    keys = [new_key() for _ in range(200)]
    assert len({key.public_id for key in keys}) == len({key.plaintext for key in keys}) == 200


def test_the_repr_has_no_secret() -> None:
    key = new_key()
    assert key.plaintext not in repr(key)
    assert key.last_four not in repr(key)


@given(st.text())
def test_text_that_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidKey) as refusal:
        parse_key(text)
    assert not text or text not in str(refusal.value) or text in "not an API key"


@given(st.integers(0, KEY_CHARS - 1), st.characters())
def test_one_changed_character_is_refused_or_is_another_key(position: int, character: str) -> None:
    key = new_key()
    changed = key.plaintext[:position] + character + key.plaintext[position + 1 :]
    try:
        parsed = parse_key(changed)
    except InvalidKey:
        return
    assert character in string.ascii_letters + string.digits + "-"
    assert (changed == key.plaintext) == (parsed.digest(PEPPER) == key.digest(PEPPER))


@pytest.mark.parametrize(
    "damage",
    [
        lambda key: key + "x",
        lambda key: key[:-1],
        lambda key: key + "\n",
        lambda key: " " + key[:-1],
        lambda key: key[:-1] + "\0",
        lambda key: key[:-1] + "٣",
        lambda key: "TP" + key[2:],
        lambda key: key[:3] + "A" + key[4:],
        lambda key: "Bearer " + key,
        lambda key: key * 100_000,
    ],
)
def test_parsing_is_strict(damage) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidKey):
        parse_key(damage(new_key().plaintext))


def test_the_digest_covers_every_part_and_the_pepper() -> None:
    key = new_key()
    sibling = parse_key(key.plaintext[:-1] + ("a" if key.plaintext[-1] != "a" else "b"))
    renamed = parse_key("tp-" + "0" * 12 + key.plaintext[15:])
    digests = {key.digest(PEPPER), sibling.digest(PEPPER), renamed.digest(PEPPER), key.digest(b"q" * 32)}
    assert len(digests) == 4
    assert {len(digest) for digest in digests} == {32}


@given(st.text(max_size=20))
def test_public_ids_are_twelve_lower_case_letters_and_digits(text: str) -> None:
    assert is_public_id(text) == (len(text) == 12 and set(text) <= set(string.ascii_lowercase + string.digits))


def test_the_two_kinds_of_key_are_never_taken_for_each_other() -> None:
    tenants, admins = new_key(), new_key(ADMIN_PREFIX)
    assert admins.plaintext.startswith("tpa-")
    assert parse_key(admins.plaintext, ADMIN_PREFIX) == admins
    with pytest.raises(InvalidKey):
        parse_key(admins.plaintext)
    with pytest.raises(InvalidKey):
        parse_key(tenants.plaintext, ADMIN_PREFIX)
