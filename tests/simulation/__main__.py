import sys, time, collections
import laggard.resilience.agent.agent
from tests.simulation.job import simulated_world
from tests.simulation.schedules import run, Schedule
def main():
    codes=collections.Counter(); errors=collections.Counter(); n=0; bad=0; kinds=collections.Counter()
    t0=time.perf_counter(); slow=[]
    with simulated_world() as directory:
        for seed in range(int(sys.argv[1]), int(sys.argv[2])):
            t=time.perf_counter()
            o = run(seed, directory)
            dt=time.perf_counter()-t
            slow.append((dt,seed,o.events,o.seconds)); kinds.update(o.faults)
            codes[o.exit_code]+=1; n+=o.events; errors.update(e[:60] for e in o.errors)
            if "-v" in sys.argv:
                print("\n".join(map(str,Schedule.of(seed).faults)))
                print("\n".join(o.trace))
            if o.failure: print(seed, o.failure.strip().splitlines()[-1][:200]); bad+=1
    print(codes, errors, n, "events", bad, "bad", time.perf_counter()-t0, "s", sorted(slow)[-5:])
    print(kinds)
main()
