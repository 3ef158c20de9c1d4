"""Every server mode stops after any round, with clients in flight, and goes on to the same run."""

import mode_worlds as modes
import pytest
import sim_worlds as sim
from test_sim_resume import stop_after

from simfed.errors import Interrupted
from simfed.record import verify
from simfed.record.schema import TABLES


@pytest.mark.parametrize("server", [False, True], ids=["", "server device"])
@pytest.mark.parametrize("mode", modes.MODES)
def test_a_run_goes_on_to_the_same_rows_wherever_it_stopped(tmp_path, mode, server):
    plain = modes.scenario(mode)

    def world(recorder):
        return modes.world(plain, recorder, server=server)

    whole = sim.write(tmp_path / "whole", world, plain)
    assert "\n".join(verify(whole.path)) == ""
    for stop in range(1, plain.rounds):
        path = tmp_path / f"stopped-{stop}"
        with pytest.raises(Interrupted):
            sim.write(path, world, plain, stop_requested=stop_after(stop))
        resumed = sim.resume(path, world, plain)
        for table in TABLES:
            assert resumed.table(table).equals(whole.table(table)), (stop, table)
        assert resumed.fingerprint == whole.fingerprint
