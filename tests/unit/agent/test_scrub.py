"""Secrets stay on the box, in whatever form they come."""

import base64
import json
from urllib.parse import quote

import pytest

from orchestrator.agent import scrub, wire

KEY = "k\"e'y/ü $1+"


@pytest.mark.parametrize(
    ("form", "kept"),
    [
        (KEY, 0),
        (json.dumps(KEY), len('""')),
        (json.dumps(KEY, ensure_ascii=False), len('""')),
        (repr(KEY), len("''")),
        (quote(KEY), 0),
        (quote(KEY, safe=""), 0),
        (KEY.replace("$", "$$"), 0),
        (base64.b64encode(KEY.encode()).decode(), len("Kw==")),
        (base64.b64encode(f"user:{KEY}".encode()).decode(), len(base64.b64encode(b"user:")) + 1),
        (base64.b64encode(f"Bearer {KEY}".encode()).decode(), len(base64.b64encode(b"Bearer ")) + 1),
        (base64.urlsafe_b64encode(f"x{KEY}y".encode()).decode(), len("eGs") + len("t5")),
    ],
)
def test_value_in_any_form_is_replaced(form: str, kept: int) -> None:
    scrubbed = scrub.Scrubber([KEY], patterns=False).text(f"before {form} after")
    assert scrubbed.startswith("before ")
    assert scrubbed.endswith(" after")
    assert scrub.MASK in scrubbed
    assert len(scrubbed.replace(scrub.MASK, "")) <= len("before  after") + kept


def test_longer_secret_is_not_left_half_masked_by_a_shorter_one() -> None:
    assert scrub.Scrubber(["abcd", "abcdefgh"]).text("abcdefgh") == scrub.MASK


@pytest.mark.parametrize("value", ["", "abc", "true", "None", "auto", "1024"])
def test_short_and_everyday_values_leave_text_alone(value: str) -> None:
    text = "abc true None auto 1024"
    assert scrub.Scrubber([value]).text(text) == text


def test_structures_are_scrubbed_in_keys_values_and_under_telling_names() -> None:
    data = {"a": [KEY, 3, None], KEY: {"api_key": "unknown", "HF_TOKEN": "unknown", "max_total_tokens": "9", "tokenizer_path": "/m"}}
    assert scrub.Scrubber([KEY]).data(data) == {
        "a": ["***", 3, None],
        "***": {"api_key": "***", "HF_TOKEN": "***", "max_total_tokens": "9", "tokenizer_path": "/m"},
    }


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("ServerArgs(host='h', api_key='sk-1', port=3)", "ServerArgs(host='h', api_key='***', port=3)"),
        ("ServerArgs(api_key=None, admin_api_key='it\\'s')", "ServerArgs(api_key=None, admin_api_key='***')"),
        ("{'api_key': 'sk-1', 'tp_size': 1}", "{'api_key': '***', 'tp_size': 1}"),
        ('{"api_key": "sk\\"1", "port": 3}', '{"api_key": "***", "port": 3}'),
        ('{"text": "{\\"api_key\\": \\"sk-1\\", \\"a\\": 1}"}', '{"text": "{\\"api_key\\": \\"***\\", \\"a\\": 1}"}'),
        ("python -m sglang.launch_server --api-key sk-1 --port 3", "python -m sglang.launch_server --api-key *** --port 3"),
        ("serve --admin-api-key=sk-1", "serve --admin-api-key=***"),
        ("serve --api-key 'sk 1' --port 3", "serve --api-key '***' --port 3"),
        ("['--api-key', 'sk-1', '--port', '3']", "['--api-key', '***', '--port', '3']"),
        ("Authorization: Bearer sk-1", "Authorization: Bearer ***"),
        ("{'Authorization': 'Bearer sk-1'}", "{'Authorization': 'Bearer ***'}"),
        ("OPENAI_API_KEY=sk-1 python", "OPENAI_API_KEY=*** python"),
        ("http://me:pass@proxy:3128/", "http://me:***@proxy:3128/"),
        (
            "max_total_num_tokens=8192, token usage: 0.00, tokenizer_path='/m'",
            "max_total_num_tokens=8192, token usage: 0.00, tokenizer_path='/m'",
        ),
        ("http://127.0.0.1:30000 with mail a@b", "http://127.0.0.1:30000 with mail a@b"),
    ],
)
def test_unknown_values_are_masked_where_sglang_puts_them(text: str, masked: str) -> None:
    assert scrub.mask_patterns(text) == masked


@pytest.mark.parametrize(
    ("arguments", "left", "secrets"),
    [
        (["--port", "3", "--api-key", "k"], ["--port", "3"], {"api-key": "k"}),
        (["--api-key=k=1", "--port", "3"], ["--port", "3"], {"api-key": "k=1"}),
        (["--api", "k", "--admin-api=a"], [], {"api-key": "k", "admin-api-key": "a"}),
        (["--api-key"], [], {"api-key": ""}),
        (["--ssl-keyfile", "/f", "--ssl-keyfile-password", "p"], ["--ssl-keyfile", "/f"], {"ssl-keyfile-password": "p"}),
        (["--api-key-file", "/f", "--a", "1"], ["--api-key-file", "/f", "--a", "1"], {}),
    ],
)
def test_secrets_are_split_from_an_argument_vector(arguments: list[str], left: list[str], secrets: dict[str, str]) -> None:
    assert scrub.split_secrets(arguments) == (left, secrets)


def test_masked_arguments_keep_their_places() -> None:
    arguments = ["--api-key", "k", "--port", "3", "--admin-api-key=a", "--api-key"]
    assert scrub.mask_arguments(arguments) == ["--api-key", "***", "--port", "3", "--admin-api-key=***", "--api-key"]


def test_secrets_of_a_launch_come_from_everywhere_it_has_them() -> None:
    launch = wire.Launch(
        launch_id="1",
        service="s",
        backend="b",
        python="python3",
        arguments=["--api-key", "argument-key"],
        host="127.0.0.1",
        port=1,
        environment={"HF_TOKEN": "hub-token", "https_proxy": "http://me:proxy-pass@p", "TOKENIZERS_PARALLELISM": "false"},
        secrets={"admin-api-key": "admin-key"},
    )
    text = scrub.launch_scrubber([launch]).text("argument-key hub-token proxy-pass admin-key false me")
    assert text == "*** *** *** *** false me"
