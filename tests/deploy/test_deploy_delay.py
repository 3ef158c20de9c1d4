"""Latency in user space: every byte comes, in order, and none too early."""

import contextlib
import socket
import threading
import time

import pytest

from simfed.deploy.delay import start_delays

UP_S, DOWN_S = 0.3, 0.15
BODY = bytes(range(256)) * 4096


@pytest.fixture
def echo():
    """A server that answers each message with its length and all of it, once it has ended."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection):
        with connection:
            data = b"".join(iter(lambda: connection.recv(65536), b""))
            connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()
    listener.close()


@contextlib.contextmanager
def delayed(to, delays):
    process, port = start_delays("127.0.0.1", to, delays)
    try:
        yield port
    finally:
        process.communicate(timeout=20)  # its input ends, and so does it
    assert process.returncode == 0


def sent(port, body):
    """What came back, and after how long the first and the last byte of it."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as talk:
        begun_s = time.monotonic()
        talk.sendall(body)
        talk.shutdown(socket.SHUT_WR)
        first = talk.recv(1)
        first_s = time.monotonic() - begun_s
        rest = b"".join(iter(lambda: talk.recv(65536), b""))
    return first + rest, first_s


def test_what_a_client_sends_and_hears_comes_whole_and_that_much_later(echo):
    with delayed(echo, {"127.0.0.1": (UP_S, DOWN_S)}) as port:
        back, took_s = sent(port, BODY)
    assert back == BODY
    assert took_s >= UP_S + DOWN_S


def test_others_are_not_held_back_and_many_at_a_time_are_served(echo):
    with delayed(echo, {"192.0.2.1": (3600.0, 3600.0)}) as port:
        answers = []
        bodies = [bytes([n]) * 100_000 for n in range(20)]
        threads = [
            threading.Thread(target=lambda body=body: answers.append(sent(port, body)[0]))
            for body in bodies
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert sorted(answers) == bodies


def test_a_server_that_is_not_there_ends_the_connection(echo):
    with (
        delayed(("127.0.0.1", 1), {}) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as talk,
    ):
        assert talk.recv(1) == b""
