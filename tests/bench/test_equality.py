"""The comparison of a card with the evaluator: what it notes of a card, and what it finds."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from bench import equality, equality_card, equality_cases, equality_model
from bench.equality_cases import CallRecord, Case
from forge.config.schema import JudgeTable
from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.execute.executors import Executor
from forge.evalpool.judge.numbers.gpu_compare import Allowed
from forge.evalpool.judge.program.format import Kernel, Options, Parameter
from forge.evalpool.judge.program.policy import ProblemFacts
from forge.evalpool.judge.trial.captures import Captured
from forge.evalpool.judge.trial.gpu.card_memory import CardMemory
from forge.evalpool.judge.trial.gpu.judgement import GpuJudgement
from forge.evalpool.judge.trial.gpu.layout import GpuReference, Set
from forge.evalpool.judge.trial.trial import Candidate
from tests.evalpool.benches import make_problem
from tests.evalpool.execute.host_card import Block, HostCard
from tests.evalpool.execute.host_judge import Thread, launched
from tests.evalpool.execute.made_programs import Made, data_of, use

if TYPE_CHECKING:
    from collections.abc import Iterator
