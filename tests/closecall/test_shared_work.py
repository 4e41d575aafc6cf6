"""What several processes encode and search together has the bytes of one. This file is also the script they run."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from closecall import search, segments
from closecall.encoder import ModelConfig, load_encoder
from closecall.errors import CloseCallError, DataError
from closecall.processes import by_main, helpers, join, leave, rank, same_everywhere, share
from closecall.search import ExactIndex
from closecall.vectors import VectorStore

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["create", "the", "bucket", "remove", "a", "key"]
NAMESPACES = ("closecall-one", "closecall-two")


def texts():
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, size)) + f" {number}" for number, size in enumerate(rng.integers(1, 25, 300))]


def whose(number):
    return rank()


def faulty(number):
    if number == 1:
        raise DataError(f"process {rank()} has a fault")
    return number


def work(model, folder):
    """Encode the texts in blocks of 40, and search them in blocks of 64."""
    segments.TEXTS_IN_BLOCK, search.DOCUMENTS_AT_ONCE = 40, 64
    store = VectorStore(Path(folder) / "vectors")
    encoder = load_encoder(ModelConfig(name=str(model), device="cpu"))
    vectors = store.get(encoder, texts(), "document", "texts")
    queries = store.get(encoder, texts()[:50], "query", "queries")
    hits = {}
    for name, found in (("whole", vectors), ("twice", np.concatenate([vectors, vectors]))):  # ties by document id
        hits[name] = ExactIndex(found, [f"{row:04}" for row in range(len(found))]).search(queries, 20)
    return {name: [found.rows.tolist(), found.scores.tolist()] for name, found in hits.items()}


def fault_of(call):
    try:
        call()
    except CloseCallError as error:
        return str(error)


def script(what, model, folder):
    """What each process does; the first one writes what it found."""
    join()
    found = {}
    if what == "die":
        segments.TEXTS_IN_BLOCK = 40
        if rank() == 1:
            dying = 3
            import closecall.encoder as module

            encode = module._encode_block

            def until(*arguments):
                nonlocal dying
                dying -= 1
                return encode(*arguments) if dying else os._exit(3)

            module._encode_block = until
        found["fault"] = fault_of(lambda: by_main(lambda: work(model, folder)))
        (Path(folder) / f"found-{rank()}.json").write_text(json.dumps(found))
        os._exit(0)
    found["hits"] = by_main(lambda: work(model, folder))
    found["whose"] = by_main(lambda: (helpers(), share(whose, [(number,) for number in range(5)])))
    found["alone"] = helpers(), share(whose, [(number,) for number in range(2)])
    found["fault"] = fault_of(lambda: by_main(lambda: share(faulty, [(number,) for number in range(2)])))
    found["configs"] = fault_of(lambda: same_everywhere({"config": str(rank()), "corpus": "same"}))
    (Path(folder) / f"found-{rank()}.json").write_text(json.dumps(found))
    leave()


def launched(what, model, folder, hosts=((), ()), address="127.0.0.1", **settings):
    """Exit codes and results of two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": port, "OMP_NUM_THREADS": "1", **settings}
    environment = os.environ | common | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, what, str(model), str(folder)]
    started = [
        subprocess.Popen([*host, *command], env=environment | {"RANK": str(number)})
        for number, host in enumerate(hosts)
    ]
    try:
        codes = [process.wait(timeout=100) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    files = (folder / f"found-{number}.json" for number in range(2))
    return codes, [json.loads(file.read_text()) if file.exists() else None for file in files]


@pytest.fixture(scope="module")
def alone(tmp_path_factory, tiny_model):
    """What one process finds, and where its vectors are."""
    import torch

    folder = tmp_path_factory.mktemp("alone")
    kept = segments.TEXTS_IN_BLOCK, search.DOCUMENTS_AT_ONCE
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return work(tiny_model, folder), folder
    finally:
        segments.TEXTS_IN_BLOCK, search.DOCUMENTS_AT_ONCE = kept
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def together(tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("together")
    codes, found = launched("work", tiny_model, folder)
    assert codes == [0, 0]
    return found, folder


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if (path.is_file() and path.suffix in (".rows", ".keys", ".done")) or path.name == "000000.json"
    }


def test_two_processes_encode_and_search_the_bytes_of_one(alone, together):
    (expected, one), (found, two) = alone, together
    assert contents(two / "vectors") == contents(one / "vectors")
    assert found[0]["hits"] == json.loads(json.dumps(expected))


def test_work_goes_to_each_process_in_turn_and_results_keep_their_order(together):
    assert together[0][0]["whose"] == [1, [0, 1, 0, 1, 0]]


def test_where_nobody_waits_all_is_done_here(together):
    assert [found["alone"] for found in together[0]] == [[0, [0, 0]], [0, [1, 1]]]


def test_a_fault_of_a_helper_is_the_fault_of_all(together):
    assert [found["fault"] for found in together[0]] == ["process 1 has a fault"] * 2


def test_processes_with_other_settings_are_refused_in_all_of_them(together):
    for found in together[0]:
        assert found["configs"].startswith("process 1 on ")
        assert "has another config than process 0 on " in found["configs"]


@pytest.mark.slow
def test_a_process_that_dies_ends_the_job_and_costs_the_blocks_in_work_alone(alone, tiny_model, tmp_path):
    codes, found = launched("die", tiny_model, tmp_path)
    assert codes == [0, 3]
    assert found[0]["fault"].startswith("process 0 on ")
    assert "another process of this job has ended, see what it said; finished blocks are kept" in found[0]["fault"]
    journal = next((tmp_path / "vectors").rglob("*.done")).read_text().splitlines()
    assert len(journal) == 4  # two rounds of two blocks; the third was lost
    import torch

    torch.set_num_threads(1)
    work(tiny_model, tmp_path)
    assert {name: data for name, data in contents(tmp_path / "vectors").items() if name.suffix == ".rows"} == {
        name: data for name, data in contents(alone[1] / "vectors").items() if name.suffix == ".rows"
    }


@pytest.fixture
def two_hosts():
    """Two network namespaces with a cable between them; skipped where the machine does not let us."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")

    def ip(*arguments, check=True):
        return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=check)

    one, two = NAMESPACES
    for name in NAMESPACES:
        ip("netns", "del", name, check=False)
    if ip("netns", "add", one, check=False).returncode:
        pytest.skip("this machine makes no network namespaces")
    try:
        ip("netns", "add", two)
        if ip(
            "link", "add", "cc-one", "netns", one, "type", "veth", "peer", "cc-two", "netns", two, check=False
        ).returncode:
            pytest.skip("this machine makes no veth pairs")
        for name, device, address in ((one, "cc-one", "10.213.0.1/24"), (two, "cc-two", "10.213.0.2/24")):
            ip("-n", name, "addr", "add", address, "dev", device)
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [("ip", "netns", "exec", name) for name in NAMESPACES]
    finally:
        for name in NAMESPACES:
            ip("netns", "del", name, check=False)


@pytest.mark.slow
def test_two_hosts_encode_and_search_the_bytes_of_one(alone, two_hosts, tiny_model, tmp_path):
    hosts = [
        (*host, "env", f"GLOO_SOCKET_IFNAME=cc-{name}") for host, name in zip(two_hosts, ("one", "two"), strict=True)
    ]
    codes, found = launched("work", tiny_model, tmp_path, hosts, "10.213.0.1")
    assert codes == [0, 0]
    assert contents(tmp_path / "vectors") == contents(alone[1] / "vectors")
    assert found[0]["hits"] == json.loads(json.dumps(alone[0]))


if __name__ == "__main__":
    script(*sys.argv[1:])
