"""cuInit as the server would call it, and nvidia-smi beside it, each in a child that may never return."""

from typing import List, Optional

from orchestrator.agent import cuda, cuda_matrix
from orchestrator.agent.cuda import CudaAnswer
from orchestrator.agent.cuda_matrix import SmiAnswer, Surroundings
from orchestrator.agent.doctor_context import Context, at_once
from orchestrator.agent.doctor_driver import (
    HMM_PARAMETER,
    SMI_LIST,
    SMI_SECONDS,
    find_library,
    kernel_knows_nvidia,
    listed_gpus,
    serves_here,
)
from orchestrator.agent.doctor_nodes import faults, open_nodes
from orchestrator.agent.driver import is_loaded, module_version
from orchestrator.agent.wire import Verdict

_SAID_LINES = 4


def check_cuda(context: Context) -> List[Verdict]:
    """CUDA and nvidia-smi, taken together."""
    if context.request.expected_gpus == 0:
        return []
    if not kernel_knows_nvidia(context) and not ask_smi(context).works:
        return []
    at_once({"smi": lambda: ask_smi(context), "cuda": lambda: ask_cuda(context)}, context.deadline)
    around, smi, answer = surroundings(context), ask_smi(context), ask_cuda(context)
    if answer is None:
        return [cuda_matrix.judge_smi(smi, around, cuda_works=False)]
    found = [cuda_matrix.judge(answer, smi, around)]
    if _is_worth(smi, answer):
        found.append(cuda_matrix.judge_smi(smi, around, cuda_works=answer.status == 0))
    return found


def _is_worth(smi: SmiAnswer, answer: CudaAnswer) -> bool:
    """Whether nvidia-smi says something that the verdict on CUDA does not hold already."""
    return smi.works or smi.hangs or smi.status is None or answer.status == 0


def ask_smi(context: Context) -> SmiAnswer:
    """``nvidia-smi -L`` as the agent's user."""
    output = context.commands.run(SMI_LIST, SMI_SECONDS)
    if output.status is None:
        return SmiAnswer(None, problem=output.errors)
    said = [line.strip() for line in (output.text + "\n" + output.errors).splitlines() if line.strip()]
    listed = listed_gpus(output.text)
    return SmiAnswer(output.status, listed, [] if listed else said[:_SAID_LINES])


def ask_cuda(context: Context) -> Optional[CudaAnswer]:
    """cuInit and the count; None where it was not asked for. A node that hangs when it is opened would hang cuInit too."""
    if not context.request.cuda:
        return None
    hangs = open_nodes(context).hangs
    if hangs is not None:
        return CudaAnswer(problem=f"did not answer: opening {hangs} hangs")
    return cuda.ask(context.commands.run_python, cuda.CUDA_SECONDS)


def cuda_works(context: Context) -> bool:
    """Whether cuInit was asked and a GPU found."""
    answer = ask_cuda(context)
    return answer is not None and answer.status == 0 and answer.count > 0


def surroundings(context: Context) -> Surroundings:
    """All that tells causes of one code apart."""
    known = kernel_knows_nvidia(context)
    library = find_library(context)
    return Surroundings(
        in_container=context.in_container,
        served_here=serves_here(context),
        stand_in=not known,
        expected=context.request.expected_gpus,
        faults=faults(context) if known else [],
        module=module_version(context.files).value,
        loaded=is_loaded(context.files),
        library=None if library is None else library.path,
        library_version=None if library is None else library.version,
        hmm=context.files.text(HMM_PARAMETER),
        visible=context.request.environment.get("CUDA_VISIBLE_DEVICES"),
        python=context.commands.python_path,
    )
