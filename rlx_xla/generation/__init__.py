"""Text from decoder-only language models: prompts, sampling on the device, streams of tokens.

Example:
    >>> from rlx_xla.generation import LanguageModel
    >>> model = LanguageModel("model.gguf")  # doctest: +SKIP
    >>> model.generate("The capital of France is")[0].text  # doctest: +SKIP
"""

from rlx_xla.generation.chat import chat_prompt as chat_prompt
from rlx_xla.generation.conversation import Conversation as Conversation
from rlx_xla.generation.model import Generation as Generation
from rlx_xla.generation.model import LanguageModel as LanguageModel
from rlx_xla.generation.model import Token as Token
from rlx_xla.generation.report import ModelReport as ModelReport
from rlx_xla.generation.sampling import SamplingOptions as SamplingOptions
