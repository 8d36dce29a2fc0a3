"""Ten lines that survive a crash: laggard --local-nodes=1 --resilient --per-node examples/hello.py."""

from laggard import Job, State

job, state = Job.current(), State.current()
print(f"launch {job.launch} on {job.primary.hostname}, from step {state.get('step', 0)}")
while (step := state.get("step", 0)) < 100:
    state["step"] = step + 1  # there in the next launch, whatever happens now
    if step == 50 and not job.restarted:
        raise SystemExit("something broke")
print(f"done: {state['step']} steps")
