"""A process that is killed loses nothing that it had stored. `python tests/kill.py` kills more."""

import torch

import faststeal as fs
import kill


def test_killed_at_random_moments():
    counts = kill.run(20, seed=3)
    assert counts.lost == []
    assert counts["killed"] == 20
    assert counts["records reported as stored"] > 100


def test_a_loss_is_seen(tmp_path):
    root, log = kill.Root(), kill.Log(tmp_path / "log")
    steal = fs.steal_forward(
        root, submodules=True, dump_file=tmp_path / "run.onnx", dump_drop={"log"}
    )
    with steal, torch.no_grad():
        log(b"<")
        for step in range(2):
            root(step, log=log)
            log()
    log(b">")

    def examined():
        result = kill.Round(tmp_path, kill.expected())
        result.examine()
        return result

    assert examined().problems == []
    assert examined().reported == 8
    log()
    assert any("8 records of 9" in text for text in examined().problems)


def test_other_content_is_seen(tmp_path):
    root = kill.Root()
    steal = fs.steal_forward(
        root, submodules=True, dump_file=tmp_path / "run.onnx", dump_drop={"log"}
    )
    with steal, torch.no_grad():
        root(1, log=lambda: None)  # the first call is to be with 0
    result = kill.Round(tmp_path, kill.expected())
    result.reported = 4
    result.records()
    assert "other content in ('child', 0, 'O')" in result.problems
