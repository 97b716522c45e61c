"""A fixed rendezvous port: taken ones are refused, free ones are used."""

from __future__ import annotations

import socket
from pathlib import Path

from runner.config.schema import RunConfig
from runner.launch.job import _rendezvous
from runner.preflight.port import check_port


def test_a_port_that_is_taken_is_refused_and_a_free_one_is_used(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        config = RunConfig.model_validate({"launcher": {"main_process_port": port}})
        [problem] = check_port(config)
        assert (problem.key, problem.value) == ("launcher.main_process_port", port)
        assert "Address already in use" in problem.why
    assert check_port(config) == check_port(RunConfig()) == []
    assert _rendezvous(tmp_path, port)["rdzv_endpoint"] == f"localhost:{port}"
