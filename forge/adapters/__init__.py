"""The judge as a reward in other people's trainers: TRL, verl, slime, verifiers and prime-rl.

Called by those frameworks, in their processes: everything here asks `forge judge --serve` through
`forge.client`, so neither torch nor a judge runs there. Never imports a framework, except
`verifiers.py`, whose classes are subclasses. docs/how-to/other-trainers.md says how to use each.
"""
