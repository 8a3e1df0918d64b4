"""Promises of both wires under random servers: whatever comes, and however it is cut, an answer is
what was sent, or a failure with a name.

`python -m tests.integration.test_load_wire_random SEED…` runs it alone: so the C parts are tried
under the sanitizers of the compiler.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from fleet_agent.load.client import native
from fleet_agent.load.client.native.library import FOLDER_VARIABLE, load_library
from fleet_agent.load.client.response_decoder import decode_response
from fleet_agent.load.client.timed_http_client import Endpoint, Exchange, LoadConnection
from tests.fakes import streams
from tests.fakes.native import WAYS, need_compiler, reading
from tests.fakes.scripted_server import CLOSE, RESET, SILENCE, Script, served

REQUEST: Final = b"POST /%d HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n"
USERS: Final = 24
REQUESTS: Final = 8  # of each
LIMIT_S: Final = 0.4
BEHIND: Final = b"said by nobody who was asked"
ROOT: Final = Path(__file__).resolve().parents[2]
NATIVE: Final = Path(native.__file__).parent
SANITIZERS: Final = {"address": "libasan.so", "undefined": "libubsan.so"}


def answers(dice: random.Random) -> list[bytes]:
    """Whole answers in every framing, with the texts that are hardest."""
    odd = [" a", "", "0\r\n\r\n", "é", "\u2028", '"', "\\", "x" * dice.randint(0, 30_000)]
    texts = dice.choices(odd, k=dice.randint(1, 60))
    events = [*streams.chat_events(texts), streams.DONE]
    body = b"".join(events)
    chunked = b"".join(map(streams.chunk, events))
    length = streams.HEAD.replace(b"transfer-encoding: chunked", b"content-length: %d" % len(body))
    return [
        streams.HEAD + chunked + streams.LAST_CHUNK,
        streams.HEAD + chunked + b"0\r\nx-trailer: 1\r\n\r\n",
        streams.HEAD + b"%x;name=1\r\n%b\r\n" % (len(body), body) + streams.LAST_CHUNK,
        length + body,
    ]


def script(dice: random.Random) -> Script:
    """An answer in pieces; half of them break off, or go on where they should not."""
    answer = dice.choice(answers(dice))
    cuts = sorted(dice.randrange(len(answer)) for _ in range(dice.choice([0, 1, 3, 40])))
    parts: list[bytes | str] = [
        answer[start:end]
        for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)
        if end > start
    ]
    wrong = dice.random()
    if wrong < 0.1:
        return [*parts[: dice.randint(0, len(parts))], dice.choice([CLOSE, RESET, SILENCE])]
    if wrong < 0.15:
        return [*parts, BEHIND]
    if wrong < 0.25:
        return [dice.randbytes(dice.randint(1, 400)), *parts, CLOSE]
    return parts


def wrong_with(sent: Script, exchange: Exchange) -> str:
    """What came is a beginning of what was sent, in times that do not run backwards; a success is
    all of it. Empty: all is well.

    What a server says behind its answer may come when the answer has been taken, and even when the
    next request has been sent.
    """
    content = b"".join(part for part in sent if isinstance(part, bytes))
    answer = content.removesuffix(BEHIND)
    response = decode_response(
        exchange.reads, closed=exchange.closed, failure=exchange.failure, detail=exchange.detail
    )
    reads = exchange.reads
    times = [exchange.sent_ns, *reads.times_ns]
    checks = {
        "other bytes": content.startswith(reads.data.removeprefix(BEHIND)),
        "times that run backwards": times == sorted(times),
        "bytes of no read": not len(reads) or reads.ends[-1] == len(reads.data),
        "a success that is not whole": response.error_kind != "" or reads.data in (answer, content),
    }
    return ", ".join(name for name, is_well in checks.items() if not is_well)


async def users(seed: int) -> list[str]:
    """The seed's users against their servers; what was not as it should be."""
    dice = random.Random(seed)
    return [
        told
        for found in await asyncio.gather(
            *(user(random.Random(dice.random())) for _ in range(USERS))
        )
        for told in found
    ]


async def user(dice: random.Random) -> list[str]:
    scripts = [script(dice) for _ in range(REQUESTS)]
    found = []
    with served(*scripts) as server:
        endpoint = Endpoint(server.url)

        def flying(connection: LoadConnection) -> None:
            if dice.random() < 0.1:
                asyncio.get_running_loop().call_later(dice.random() / 20, connection.cancel)

        for number in range(REQUESTS):
            request = REQUEST % number
            exchange = await endpoint.exchange(request, LIMIT_S, flying)
            got = request in server.requests  # one may be lost with its connection
            sent = scripts[server.requests.index(request)] if got else []
            if wrong := wrong_with(sent, exchange):
                found.append(
                    f"{number}: {wrong} ({exchange.failure}): {exchange.reads.pairs()} of {sent}"[
                        :2000
                    ]
                )
        endpoint.close()
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(3))
async def test_an_answer_is_what_was_sent_or_a_failure_with_a_name(seed: int, way: str) -> None:
    with reading(way):
        assert await users(seed) == []


@pytest.mark.parametrize("kind", SANITIZERS)
def test_the_c_parts_touch_nothing_that_is_not_theirs(kind: str, tmp_path: Path) -> None:
    need_compiler()
    compiler = tmp_path / "cc"
    compiler.write_text(
        f'#!/bin/sh\nexec cc -g -fno-omit-frame-pointer -fno-sanitize-recover=all -fsanitize={kind} "$@"\n'
    )
    compiler.chmod(0o700)
    where = subprocess.run(
        ["cc", f"-print-file-name={SANITIZERS[kind]}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    env = os.environ | {
        FOLDER_VARIABLE: str(tmp_path / "native"), "CC": str(compiler), "LD_PRELOAD": where, "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", __name__, "1"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (0, "c: 1 seeds, nothing wrong\n"), done.stderr[-4000:]


@pytest.mark.parametrize("kind", ["thread", "address"])
def test_the_reader_and_the_loop_may_do_anything_at_the_same_time(
    kind: str, tmp_path: Path
) -> None:
    need_compiler()
    program, sources = (
        tmp_path / "race",
        [ROOT / "tests/fakes/reader_race.c", NATIVE / "reader.c", NATIVE / "stream.c"],
    )
    flags = [
        "-g",
        "-O1",
        "-fno-sanitize-recover=all",
        f"-fsanitize={kind}",
        "-pthread",
        f"-I{NATIVE}",
    ]
    subprocess.run(["cc", *flags, "-o", str(program), *map(str, sources)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


def main() -> None:
    found = [told for seed in map(int, sys.argv[1:]) for told in asyncio.run(users(seed))]
    way = "python" if load_library() is None else "c"
    print(f"{way}: {len(sys.argv) - 1} seeds, {found or 'nothing wrong'}")


if __name__ == "__main__":
    main()
