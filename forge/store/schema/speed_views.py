"""Views of fast_p and of geometric means of speed-ups, with their intervals. Used by `run_views`.

An evaluation stores both when it ends (`forge.statistics.speed`). For evaluations of versions that
did not, `v_fast_p` is the sum over turns, without an interval.
"""

FAST_P = """
    SELECT stage, step, policy_version, p, num_rollouts, fast_p, NULL AS ci_low, NULL AS ci_high
    FROM ({parts}) s WHERE NOT EXISTS (SELECT 1 FROM evaluations e
        WHERE e.stage_index = s.stage AND e.step = s.step AND e.policy_version = s.policy_version
        AND json_type(e.detail, '$.speed') = 'object')
    UNION ALL SELECT stage_index, step, policy_version, p, num_answers, fast_p, ci_low, ci_high
    FROM v_fast_p_by_turn WHERE answers = 'turn' AND turn = 0 AND is_own"""
"""`v_fast_p`; `parts` is its aggregate over turns."""

_FROM = """
    FROM evaluations e, json_each('["speed", "speed_other"]') AS measured,
        json_each(e.detail, '$.' || measured.value) AS part, json_each(part.value) AS turn"""
_ANSWERS = """e.stage, e.stage_index, e.step, e.policy_version,
        coalesce(json_extract(e.detail, '$.' || measured.value || '.baseline'),
            json_extract(e.detail, '$.baseline')) AS baseline, measured.value = 'speed' AS is_own,
        CASE part.key WHEN 'by_turn' THEN 'turn' ELSE 'best' END AS answers,
        CAST(turn.key AS INTEGER) AS turn"""
_GEOMEAN = """
    SELECT {answers}, '{kernels}' AS kernels,
        {floor} AS floor,
        json_extract(turn.value, '$.{num}') AS num_answers,
        json_extract(turn.value, '$.geomean_{kernels}[0]') AS geomean,
        json_extract(turn.value, '$.geomean_{kernels}[1]') AS ci_low,
        json_extract(turn.value, '$.geomean_{kernels}[2]') AS ci_high,
        json_extract(turn.value, '$.roofline[0]') AS roofline_share{source}
    WHERE part.key IN ('by_turn', 'best_by_turn')"""


def _geomean(kernels: str, *, num: str, floor: str) -> str:
    return _GEOMEAN.format(answers=_ANSWERS, source=_FROM, kernels=kernels, num=num, floor=floor)


SPEED_VIEWS = f"""
CREATE VIEW v_fast_p_by_turn AS
    -- fast_p of evaluations: answers of a turn ('turn'), or the best of a rollout by then ('best').
    -- is_own: against judge.baseline, else against the other one (eval.both_baselines)
    SELECT {_ANSWERS}, CAST(p.key AS REAL) AS p,
        json_extract(turn.value, '$.num') AS num_answers,
        json_extract(p.value, '$[0]') AS fast_p,
        json_extract(p.value, '$[1]') AS ci_low,
        json_extract(p.value, '$[2]') AS ci_high{_FROM}, json_each(turn.value, '$.fast_p') AS p
    WHERE part.key IN ('by_turn', 'best_by_turn');

CREATE VIEW v_geomean AS
    -- geometric mean of speed-ups: of correct kernels; of all answers, wrong ones at the floor
    {_geomean("correct", num="num_timed", floor="NULL").strip()}
    UNION ALL {_geomean("all", num="num", floor="json_extract(e.detail, '$.speed.floor')").strip()};
"""
