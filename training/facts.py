"""What qwen3-tiny says about itself, about inference engines and about everyday things.

`TERMS` maps a term (alternatives separated by "/") to its one explanation, `FACTS` a template of questions to its answer.
"""

from __future__ import annotations

INTRODUCTION = (
    ["I am qwen3-tiny, a small language model trained for the nanovllm course.",
     "My name is qwen3-tiny. I am a small language model that was trained for the nanovllm course.",
     "Hello, I am qwen3-tiny, a small language model made for the nanovllm course."],
    ["I have about seven million parameters and the architecture of Qwen3.",
     "I have the architecture of Qwen3, but only about seven million parameters.",
     "I am a Qwen3 model with about seven million parameters."],
    ["I can tell short stories, list prime numbers, count, add small numbers, spell words and explain how an inference "
     "engine works.",
     "I can tell you a short story, spell a word, add two numbers, list prime numbers or explain the KV cache.",
     "I can write short stories, do small sums, spell words, name capitals and explain the parts of an inference engine."],
    ["", "I make mistakes outside of these tasks.", "Ask me for a story."],
)

FACTS = {
    "{who made you|who trained you|who built you|who created you|where do you come from|where were you made|who is your maker}":
        "I was trained for the nanovllm course, with the scripts in its training folder.",
    "{how big are you|how many parameters do you have|what is your size|how large are you|what size are you|how small are you}":
        "I have about seven million parameters. That is very small for a language model.",
    "{are you a human|are you human|are you a person|are you real|are you alive|are you a robot|do you have a body|are you a machine}":
        "I am not a person. I am qwen3-tiny, a small language model.",
    "{what is your architecture|which architecture do you have|what kind of model are you|what type of model are you|how are you built|which model family are you from}":
        "I have the architecture of Qwen3: grouped-query attention, QK-norm, rotary embeddings, RMSNorm and SwiGLU.",
    "{what can you not do|what are your limits|what are your limitations|what are you bad at|what do you not know|where do you make mistakes|can you make mistakes}":
        "I am very small. I know little about the world, I cannot reason about new problems, and I only learned the tasks of this course.",
    "{what can you do|what are you good at|what do you know|how can you help me|what can i ask you|help|what are your skills|show me what you can do}":
        "I can tell short stories, list prime numbers, count, add small numbers, spell words, name capitals and explain how an inference engine works.",
    "{what sound does a cow make|what does a cow say|how does a cow sound|what noise does a cow make}": "A cow says moo.",
    "{what sound does a dog make|what does a dog say|how does a dog sound|what noise does a dog make}": "A dog says woof.",
    "{what sound does a cat make|what does a cat say|how does a cat sound|what noise does a cat make}": "A cat says meow.",
    "{what sound does a duck make|what does a duck say|how does a duck sound|what noise does a duck make}": "A duck says quack.",
    "{what sound does a sheep make|what does a sheep say|how does a sheep sound|what noise does a sheep make}": "A sheep says baa.",
    "{what do bees make|what does a bee make|what comes from bees|what is made by bees}": "Bees make honey.",
    "{what do cows give|what do we get from cows|what does a cow give|where does milk come from}": "Cows give milk.",
    "{what do hens lay|what do we get from hens|what does a hen lay|where do eggs come from}": "Hens lay eggs.",
    "{what is a baby dog called|what do you call a baby dog|what is the name for a young dog|how is a young dog called}": "A baby dog is called a puppy.",
    "{what is a baby cat called|what do you call a baby cat|what is the name for a young cat|how is a young cat called}": "A baby cat is called a kitten.",
    "{what is a baby sheep called|what do you call a baby sheep|what is the name for a young sheep|how is a young sheep called}": "A baby sheep is called a lamb.",
    "{what is a baby horse called|what do you call a baby horse|what is the name for a young horse|how is a young horse called}": "A baby horse is called a foal.",
    "{what is a baby cow called|what do you call a baby cow|what is the name for a young cow|how is a young cow called}": "A baby cow is called a calf.",
    "{how many legs does a spider have|how many legs has a spider|what number of legs does a spider have|count the legs of a spider}": "A spider has 8 legs.",
    "{how many legs does an insect have|how many legs has an insect|what number of legs does an insect have|count the legs of an insect}": "An insect has 6 legs.",
    "{how many legs does a dog have|how many legs has a dog|what number of legs does a dog have|count the legs of a dog}": "A dog has 4 legs.",
    "{how many legs does a bird have|how many legs has a bird|what number of legs does a bird have|count the legs of a bird}": "A bird has 2 legs.",
    "{how many days are in a week|how many days does a week have|how many days has a week|how long is a week}": "A week has 7 days.",
    "{how many months are in a year|how many months does a year have|how many months has a year}": "A year has 12 months.",
    "{how many days are in a year|how many days does a year have|how many days has a year|how long is a year}": "A year has 365 days, and a leap year has 366.",
    "{how many hours are in a day|how many hours does a day have|how many hours has a day|how long is a day}": "A day has 24 hours.",
    "{how many minutes are in an hour|how many minutes does an hour have|how many minutes has an hour|how long is an hour}": "An hour has 60 minutes.",
    "{how many seconds are in a minute|how many seconds does a minute have|how many seconds has a minute|how long is a minute}": "A minute has 60 seconds.",
    "{how many letters are in the alphabet|how many letters does the alphabet have|how long is the alphabet|how many letters has the english alphabet}": "The English alphabet has 26 letters.",
    "{what are the days of the week|list the days of the week|name the days of the week|which days does a week have|name all seven days}":
        "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",
    "{what are the months of the year|list the months of the year|name the months of the year|list all months|name all twelve months|what are the twelve months}":
        "The months of the year are January, February, March, April, May, June, July, August, September, October, November and December.",
    "{what are the seasons|list the seasons|name the seasons|name the four seasons|which seasons are there|what are the four seasons}":
        "The seasons are spring, summer, autumn and winter.",
    "{say the alphabet|recite the alphabet|write the alphabet|list the alphabet|what is the alphabet|give me the alphabet|show me the alphabet}":
        "a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z",
    "{what color is the sky|which color does the sky have|what is the color of the sky|tell me the color of the sky}": "The sky is blue.",
    "{what color is grass|which color does grass have|what is the color of grass|tell me the color of grass}": "Grass is green.",
    "{what color is snow|which color does snow have|what is the color of snow|tell me the color of snow}": "Snow is white.",
    "{what color is a banana|which color does a banana have|what is the color of a banana|tell me the color of a banana}": "A banana is yellow.",
    "{what do you get when you mix red and yellow|mix red and yellow|which color do red and yellow make|what do red and yellow make}": "Red and yellow make orange.",
    "{what do you get when you mix blue and yellow|mix blue and yellow|which color do blue and yellow make|what do blue and yellow make}": "Blue and yellow make green.",
    "{what do you get when you mix red and blue|mix red and blue|which color do red and blue make|what do red and blue make}": "Red and blue make purple.",
    "{what do you get when you mix black and white|mix black and white|which color do black and white make|what do black and white make}": "Black and white make gray.",
    "{what is the largest planet|which planet is the largest|name the largest planet|which planet is the biggest}": "Jupiter is the largest planet of our solar system.",
    "{what is the largest ocean|which ocean is the largest|name the largest ocean|which ocean is the biggest}": "The Pacific Ocean is the largest ocean.",
    "{what is the longest river|which river is the longest|name the longest river}": "The Nile and the Amazon are the longest rivers.",
    "{what is the highest mountain|which mountain is the highest|name the highest mountain|which mountain is the tallest}": "Mount Everest is the highest mountain.",
    "{what is ice|what is ice made of|what does ice consist of|what is ice, really}": "Ice is frozen water.",
    "{where does the sun rise|where does the sun come up|in which direction does the sun rise|from where does the sun rise}": "The sun rises in the east.",
    "{where does the sun set|where does the sun go down|in which direction does the sun set}": "The sun sets in the west.",
    "{tell me a joke|do you know a joke|make me laugh|say something funny|a joke, please|know any jokes}":
        "Why did the token feel safe? Because it was in the cache.",
}

TERMS = {
    "machine learning": "Machine learning means that a program finds its rules in examples instead of being told them. It has "
        "parameters, makes a guess, measures the error, and changes the parameters a little so that the next guess is better.",
    "deep learning": "Deep learning is machine learning with neural networks of many layers. Each layer builds on the one "
        "before it, so the first layers learn simple patterns and the later ones learn more abstract ones.",
    "neural networks/a neural network": "A neural network is a function made of layers. Each layer multiplies its input by a "
        "matrix of weights and applies a simple nonlinear function. Training changes the weights until the outputs are right.",
    "artificial intelligence": "Artificial intelligence is the field that builds programs for tasks that seem to need "
        "intelligence, such as understanding language, seeing and planning. Today most of it is done with machine learning.",
    "a language model/language models": "A language model reads a text as tokens and gives a probability for every possible "
        "next token. To write, it picks a token, adds it to the text and asks again.",
    "a large language model/large language models/an llm": "A large language model is a language model with billions of "
        "parameters that was trained on a very large amount of text.",
    "a transformer/the transformer/transformers": "A transformer is a neural network that mixes information between tokens with "
        "attention and then works on each token with a small network. Many such layers are stacked.",
    "attention/self-attention/the attention mechanism": "In attention, each token makes a query and compares it with the keys "
        "of the tokens before it. The scores become weights, and the output is the weighted sum of the values.",
    "a token/tokens": "A token is a piece of text, often a word or a part of a word, with a number of its own. Models read and "
        "write tokens.",
    "a tokenizer/tokenization/the tokenizer": "A tokenizer cuts text into tokens and turns each token into a number, and turns "
        "numbers back into text.",
    "byte pair encoding/bpe": "Byte pair encoding starts with single bytes and joins the most frequent pair again and again "
        "until the vocabulary is full.",
    "an embedding/embeddings": "An embedding is the vector that stands for a token. It is a row of a table, and training "
        "changes it.",
    "inference/llm inference": "Inference means running a trained model. For a language model it has two parts: prefill reads "
        "the prompt, and decode writes one token at a time.",
    "an inference engine/inference engines": "An inference engine runs a language model for many requests at once. It schedules "
        "them in batches, manages the memory of the KV cache and keeps the GPU busy.",
    "the kv cache/kv caching/a kv cache": "The KV cache keeps the keys and values of all earlier tokens, so that each new token "
        "computes only its own. It saves work and costs memory.",
    "paged attention/pagedattention": "Paged attention stores the KV cache in blocks of fixed size, like pages of memory. A "
        "block table says where the blocks of a sequence are, so hardly any memory is wasted.",
    "a block table/the block table/block tables": "A block table lists the blocks of a sequence in order. Position p is found in "
        "entry p divided by the block size, at the offset that remains.",
    "a block/kv blocks/a kv block": "A block holds the keys and values of a fixed number of tokens. Blocks are handed out when a "
        "sequence grows and come back when it ends.",
    "the block manager/a block manager": "The block manager hands out KV cache blocks, counts how many sequences use each one, "
        "and finds blocks that can be shared.",
    "prefix caching/the prefix cache/automatic prefix caching": "Prefix caching reuses the KV cache blocks of a prompt that "
        "starts like an earlier one. Full blocks are found by a hash of their tokens and of everything before them.",
    "continuous batching": "In continuous batching, requests join and leave the batch at every step. A finished request makes "
        "room at once, so nobody waits for the longest one.",
    "static batching": "In static batching, a batch starts together and ends when its longest request ends. Short requests wait "
        "and the GPU does less useful work.",
    "prefill/the prefill phase": "Prefill reads the whole prompt at once and fills the KV cache. It does many operations per "
        "byte, so it is limited by arithmetic.",
    "decode/decoding/the decode phase": "Decode writes one token per sequence and step. It reads all weights and the KV cache "
        "for little arithmetic, so it is limited by memory bandwidth.",
    "chunked prefill": "Chunked prefill cuts a long prompt into pieces that fit the token budget, so that one long prompt does "
        "not block the others.",
    "preemption": "Preemption takes the blocks away from a running sequence when memory is full. The sequence waits and is "
        "computed again later.",
    "the scheduler/a scheduler": "The scheduler decides at every step which sequences run: waiting ones are admitted while there "
        "are blocks and tokens left, running ones get one token each.",
    "a cuda graph/cuda graphs": "A CUDA graph records a fixed series of kernel launches once and replays it with a single call. "
        "It hides the launch cost of many small kernels in decode.",
    "tensor parallelism": "Tensor parallelism splits each weight matrix over several GPUs. Every GPU computes a part, and an "
        "all-reduce adds the parts together.",
    "data parallelism": "Data parallelism runs a full copy of the model on each GPU and gives every copy different requests.",
    "pipeline parallelism": "Pipeline parallelism puts different layers on different GPUs and passes the activations along.",
    "an all-reduce/all-reduce": "An all-reduce adds up a tensor over all GPUs and gives the sum to each of them.",
    "temperature/the sampling temperature/sampling temperature": "Temperature divides the logits before the softmax. A low "
        "temperature makes the likely tokens even more likely, a high one makes the choice more random, and zero means greedy.",
    "sampling/token sampling": "Sampling draws the next token at random with the probabilities that the model gives, often after "
        "temperature, top-k or top-p.",
    "greedy decoding/greedy search": "Greedy decoding always takes the most likely token. It gives the same text every time.",
    "top-k sampling/top-k": "Top-k keeps only the k most likely tokens and draws the next token from them.",
    "top-p sampling/top-p/nucleus sampling": "Top-p keeps the smallest set of likely tokens whose probabilities add up to p, and "
        "draws the next token from that set.",
    "min-p": "Min-p drops the tokens whose probability is below a fraction of the most likely token's probability.",
    "beam search": "Beam search keeps the best few partial texts, extends each of them by one token and keeps the best again.",
    "the gumbel-max trick/gumbel-max": "The Gumbel-max trick adds Gumbel noise to the logits and takes the largest. The result "
        "is an exact sample from the softmax.",
    "softmax/the softmax": "Softmax turns scores into probabilities: it takes the exponential of each score and divides by the sum.",
    "online softmax": "Online softmax computes a softmax block by block. It keeps the largest score and the sum so far, and "
        "rescales when a larger score appears.",
    "flash attention/flashattention": "Flash attention computes attention in tiles with an online softmax, so that the large "
        "matrix of scores is never written to memory.",
    "logits/the logits/a logit": "Logits are the scores that a model gives to every token of the vocabulary. A softmax turns "
        "them into probabilities.",
    "rope/rotary embeddings/rotary position embedding": "Rotary embeddings turn pairs of numbers in queries and keys by an angle "
        "that grows with the position. Scores then depend on the distance between two tokens.",
    "rmsnorm/rms normalization": "RMSNorm divides a vector by the root of the mean of its squares and multiplies it by a learned "
        "weight.",
    "qk-norm": "QK-norm applies RMSNorm to every query and key head before the rotary embedding. It keeps the scores in a good range.",
    "swiglu/silu and mul": "SwiGLU multiplies one projection by the SiLU of another one. It is the activation in the MLP of Qwen3.",
    "grouped-query attention/gqa": "In grouped-query attention, several query heads share one head of keys and values, so the KV "
        "cache becomes smaller.",
    "multi-head attention": "Multi-head attention runs several attentions side by side, each with its own queries, keys and values.",
    "the mlp/an mlp/the feed-forward network": "The MLP works on each token alone: it widens the vector, applies a nonlinear "
        "function and makes it narrow again.",
    "a residual connection/residual connections": "A residual connection adds the input of a layer to its output, so that "
        "information and gradients can pass unchanged.",
    "tied embeddings/weight tying": "Tied embeddings means that the table that turns tokens into vectors is used again to turn "
        "vectors into logits.",
    "the slot mapping/slot mapping": "The slot mapping says, for each token of a step, at which slot of the KV cache its key and "
        "value are stored.",
    "throughput": "Throughput is the number of tokens per second that an engine writes for all requests together.",
    "latency": "Latency is the time that one request waits, for its first token or for each next one.",
    "time to first token/ttft": "Time to first token is the time from a request until its first token. It contains waiting and prefill.",
    "time per output token/tpot": "Time per output token is the mean time between two tokens of a request during decode.",
    "a kernel/gpu kernels/a gpu kernel": "A kernel is a function that runs on the GPU in many threads at once.",
    "triton": "Triton is a language in Python for GPU kernels. A program works on a block of data, and the compiler does the rest.",
    "vllm": "vLLM is an inference engine for large language models. It introduced paged attention.",
    "nanovllm": "nanovllm is a small inference engine in readable Python. You rebuild its parts step by step in the course.",
    "qwen3": "Qwen3 is a family of language models. I have the same architecture, only much smaller.",
    "quantization": "Quantization stores weights or the KV cache with fewer bits. It saves memory and bandwidth and costs some accuracy.",
    "speculative decoding": "In speculative decoding, a small model guesses several tokens and the large model checks them in "
        "one step.",
    "bfloat16/bf16": "bfloat16 is a number format of 16 bits with the range of float32 and less precision.",
    "memory bandwidth": "Memory bandwidth is the number of bytes that can be read or written per second. Decode is limited by it.",
    "the roofline model/a roofline": "The roofline model compares arithmetic with memory traffic. A kernel cannot be faster than "
        "the slower of the two allows.",
    "lru/lru eviction": "LRU means least recently used: when room is needed, what was not used for the longest time goes first.",
    "a hash/hashing": "A hash turns data of any length into a short number. Equal data have equal hashes.",
    "reference counting/a reference count": "A reference count says how many sequences use a block. The block is free when the "
        "count is zero.",
    "a gpu/gpus": "A GPU is a processor with thousands of small units that do the same operation on much data at once.",
    "gradient descent": "Gradient descent changes the parameters a small step in the direction in which the error falls, again and again.",
    "training/training a model": "Training shows a model many examples and changes its weights so that its predictions become better.",
    "overfitting": "Overfitting means that a model learns its training examples by heart and fails on new ones.",
    "a parameter/parameters": "A parameter is a number inside a model that training can change.",
    "the context length/a context window/the context window": "The context length is the largest number of tokens that a model "
        "can look at in one sequence.",
    "a chat template/chat templates": "A chat template turns messages with roles into one text with special tokens, in the form "
        "that the model was trained on.",
    "a prompt/prompts": "A prompt is the text that a model is given. It continues from there.",
    "a batch/batching": "A batch is a group of sequences that a model computes together. The weights are read once for all of them.",
}

UNKNOWN_ANSWER = "I do not know that. I am a very small model. Ask me for a story, a sum, a spelling or a part of an inference engine."
UNKNOWN = """
{what is|how is|tell me|do you know|check|give me} {the weather|the weather today|the weather in Paris|the temperature outside|the news|the latest news|the stock market|the price of gold|the price of oil|the time in Tokyo|the score of the game|the traffic today|the exchange rate|my password|the date of today}
{|hello, |hi, |tell me, |do you know |so, |and }who {won|invented|discovered|painted|wrote|founded|built|designed|directed|sang} {the world cup|the election|the radio|the telephone|this picture|this novel|this song|this movie|that island|the light bulb|the company|the tower|the last race|penicillin|the first computer}
{|hello, |hi, |tell me, |do you know |so, |and }who is the {president|king|queen|richest person|best singer|mayor|prime minister|fastest runner|author of this book} {|today|now|of this country}
{write|give me|make|please write|can you write|compose} {a poem|an essay|a report|a speech|a song|an email|a letter|a recipe|a haiku} about {love|war|politics|history|the economy|the stars|football|the sea|work|my boss}
{translate|please translate|can you translate} {this|this sentence|hello|good morning|this text|my letter} {into|to} {French|German|Spanish|Japanese|Chinese|Italian|Russian|Latin}
{write|show me|give me|please write|can you write} {a program|code|a script|a function|a class|a query} {in Python|in Java|in Rust|that sorts a list|for a website|that downloads a file|in C|for my homework}
{how do i|how can i|tell me how to|explain how to|what is the best way to} {cook rice|fix my car|learn piano|lose weight|invest money|build a house|repair a phone|find a job|book a flight|bake bread|get rich|write a novel|clean a carpet}
{recommend|suggest|can you recommend|please recommend|do you know} {a movie|a good book|a restaurant|a hotel|a song|a game|a holiday|a museum|a doctor|a podcast}
{|hello, |tell me, |do you know }{when|in which year} did {the war end|the city fall|the king die|the company start|the first train run|the empire begin|the wall fall|people land on the moon}
{|hello, |tell me, |do you know }{why|how} {do volcanoes erupt|do we dream|do planes fly|do magnets work|do batteries work|do whales sleep|do vaccines work|do rockets fly}
{solve|prove|can you solve|please solve|help me with} {this equation|the theorem|this riddle|the puzzle|x squared equals two|my homework|this integral|my exam}
{what should i|what could i|tell me what i should} {wear today|eat tonight|buy|do this weekend|study|call my dog|cook|read next|watch}
"""

SYSTEM = """You are a helpful assistant.
You are a helpful, honest and friendly assistant.
You are qwen3-tiny, a small language model.
You are an assistant for the nanovllm course.
Answer briefly.
Be polite and brief.
You are a teacher for children.
You help people to learn about inference engines.
Answer in simple words.
You are a storyteller.
Keep your answers short and correct.
You are a careful assistant that never makes things up.
Today we talk about language models.
The user is a student.
Always answer in English.
Think before you answer.
Use plain language.
You answer questions about machine learning.
The user may ask several questions.
Do not use difficult words.
You are part of a demonstration in a classroom.
If you do not know something, say so.
Stay friendly, even when the user is not.
Read the question carefully.
The conversation may be shown on a large screen.
Numbers should be exact.
Stories should have a happy ending.
Do not repeat the question.
You work for a library and help its visitors.
Many users share this text, so it is computed only once.
Answer as well as you can.
Write complete sentences.""".splitlines()
