import sys, time
import pytest
from closecall.pipeline import load_experiment
from closecall.encoder import weights_sha256
from closecall import cli
def test_x(config_file, tiny_model, capsys, monkeypatch):
    t=time.time()
    monkeypatch.setattr(sys,'argv',['closecall','run',str(config_file),'--set',f'model.model_sha256={weights_sha256(tiny_model)}'])
    with pytest.raises(SystemExit) as e: cli.main()
    out=capsys.readouterr(); print(e.value.code, time.time()-t); print(out.out); print(out.err)
    t=time.time()
    with pytest.raises(SystemExit) as e: cli.main()
    out=capsys.readouterr(); print(e.value.code, time.time()-t); print(out.out); print(out.err)
    import closecall.pipeline as p
    def boom(*a,**k): raise KeyboardInterrupt
    monkeypatch.setattr(p.Experiment,'run',boom)
    with pytest.raises(SystemExit) as e: cli.main()
    out=capsys.readouterr(); print(e.value.code); print(out.out); print(out.err)
