"""Plans of modules: a step for each operation, worked out before the first launch.

`dispatch.plan_of` makes a plan; `evaluate` runs it through `control`. A step is a function of an
environment and a group of instances; `planner` has the types. Imports `memory` and `semantics`.
"""
