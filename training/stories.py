"""The story world: a small simulation of wants, obstacles, attempts and outcomes, told in many ways.

A `Cast` fixes who and what the story is about; a plot changes the state of the world (where the thing is, how
many coins there are, which tools are too short) and says each change with `Telling.say`. Names, pronouns and
things come from the cast alone, so they stay the same from the first sentence to the last.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from . import words as w
from .phrases import expand, held_out, sentences

PRONOUNS = {"f": ("she", "her", "her", "herself"), "m": ("he", "him", "his", "himself")}


@dataclass
class Cast:
    """Who and what a story is about. `kind` is "girl", "boy" or a species; `look` may be empty."""

    hero: str
    gender: str
    kind: str
    trait: str
    friend: str
    friend_gender: str
    friend_kind: str
    thing: str
    group: str
    look: str
    place: str
    elder: str
    elder_gender: str
    short: bool = False
    long: bool = False


@dataclass
class Telling:
    """The text so far and the slots that its templates may use."""

    rng: random.Random
    cast: Cast
    slots: dict[str, str] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    episode: int = 0

    def __post_init__(self) -> None:
        c = self.cast
        look = f"{c.look} {c.thing}" if c.look else c.thing
        he, him, his, himself = PRONOUNS[c.gender]
        fhe, fhim, fhis, _ = PRONOUNS[c.friend_gender]
        ehe, ehim, ehis, _ = PRONOUNS[c.elder_gender]
        self.slots.update(
            Hero=c.hero, he=he, him=him, his=his, himself=himself, kind=c.kind, trait=c.trait,
            a_trait_kind=w.article(f"{c.trait} {c.kind}"), a_kind=w.article(c.kind),
            Friend=c.friend, fhe=fhe, fhim=fhim, fhis=fhis, fkind=c.friend_kind, a_fkind=w.article(c.friend_kind),
            thing=c.thing, look=look, a_look=w.article(look), a_thing=w.article(c.thing), the_thing=f"the {c.thing}",
            place=c.place, elder=c.elder, ehe=ehe, ehim=ehim, ehis=ehis,
            child="girl" if c.gender == "f" else "boy",
        )

    def say(self, template: str, chance: float = 1.0, **slots: str) -> None:
        """Add one rendering; with `chance` below 1 the sentence is optional and left out of short stories."""
        if chance < 1 and (self.cast.short or self.rng.random() >= chance):
            return
        self.slots.update(slots)
        self.parts.append(sentences(expand(self.rng, template, self.slots)))

    def text(self) -> str:
        """The story so far as one paragraph."""
        return " ".join(part for part in self.parts if part)


# --- openings and endings -------------------------------------------------------------------------------------

OPENING = """
{Once upon a time,|Long ago,|Once,|Once upon a time,} there {was|lived} [a_trait_kind] named [Hero].
{Once upon a time,|Long ago,|Once upon a time,} [a_trait_kind] named [Hero] lived in [home].
[Hero] was [a_trait_kind] who lived in [home].
In [home] there lived [a_trait_kind] {named|called} [Hero].
There once was [a_trait_kind] {named|called} [Hero], who lived in [home].
[Hero] was [a_trait_kind]. [he] lived in [home].
One {sunny|cold|bright|windy|quiet|rainy} {morning|day|afternoon}, [a_trait_kind] named [Hero] {woke up early|looked out of the window|went outside|could not sit still}.
This is the story of [Hero], [a_trait_kind] from [home].
"""
OWNING = """
[he] had [a_look] that [he] loved {very much|more than anything|with all [his] heart}.
[Hero] loved [his] [look] {very much|more than anything else|and took it everywhere}.
Of all [his] things, [he] liked [his] [look] best.
For [his] birthday, [his] [elder] had given [him] [a_look].
[his] {favorite|dearest} thing was [a_look] {that [his] [elder] had made|from [his] [elder]|that [he] had found at the market}.
Every {day|morning|evening}, [he] {looked at|cleaned|held} [his] [look] and smiled.
"""
FRIEND = """
[his] best friend was [a_fkind] named [Friend].
[he] had a {good|dear|close} friend, [a_fkind] named [Friend].
[Hero] and [his] friend [Friend], [a_fkind], {did everything together|met every day|liked to play together}.
Next door lived [Friend], [a_fkind] who {was always ready to help|knew many songs|loved to laugh}.
"""
WEATHER = """
The sun was {warm|bright|high in the sky}{.| and the birds were singing.}
It was a {cloudy|windy|bright|cool|warm} {morning|day|afternoon}.
The {air|wind} smelled of {grass|rain|flowers|the sea}.
White clouds {drifted|floated|moved slowly} across the sky.
"""
MORALS = {
    "lost": """
From that day on, [Hero] always looked after [his] [thing].
[Hero] learned that {good friends help you look|it is easier to search together|you should not give up too soon}.
After that, [he] always put the [thing] in a safe place.
That night, the [thing] {stood|lay} {next to|beside} [his] bed, and [Hero] slept well.
""",
    "share": """
{They|[Hero] and [Friend]} learned that sharing {is more fun than winning|makes good things better|is better than fighting}.
From then on, they shared the [thing] {every day|and everything else}.
[Hero] thought that the [thing] was {nicer|better} with two.
""",
    "help": """
[Hero] {learned|saw} that {a small kindness can change a whole day|helping others feels warm inside|kindness comes back}.
{It feels good to help|It is good to be kind}, [Hero] thought.
And so a {small|little} kindness made a {new|good} friend.
""",
    "try": """
[Hero] learned that {if you keep trying, you get better|it takes time to learn something new|every mistake teaches you something}.
{All that practice was worth it|It was hard, but it was worth it}, [he] thought.
[he] was {tired|very tired} but {proud|happy}.
""",
    "honest": """
[Hero] learned that {telling the truth is hard, but it makes you feel light|it is best to tell the truth|an honest word is worth more than a thing}.
After that, [he] always told the truth, even when it was hard.
""",
    "mend": """
[Hero] learned that {many broken things can be mended|it pays to be patient|two can fix what one cannot}.
After that, [Hero] was {more careful|very careful} with the [thing].
""",
    "trade": """
[Hero] learned that {new is not always better|some things cannot be traded}.
After that, [he] {thought twice before a trade|never wanted to trade it again}.
""",
    "meal": """
They learned that {sharing makes food taste better|half is enough when you eat with a friend|sharing is better than fighting}.
[Hero] thought that {nothing tastes as good as a shared meal|it is nicer to eat with a friend}.
""",
    "asked": """
[Hero] learned that {you may ask a friend for help|friends can do together what one cannot do alone|two heads are better than one}.
{It is good to have friends|Friends make hard things easy}, [Hero] thought.
""",
    "work": """
[Hero] learned that {what you earn yourself is worth more|work can be fun|it is worth waiting for a wish}.
{All that work was worth it|It was hard work, but it was worth it}, [he] thought.
""",
    "found": """
[Hero] learned that {finding a friend is better than finding a thing|it feels good to give back what is not yours}.
{It was right to give it back|A friend is worth more than any [thing]}, [Hero] thought.
""",
    "brave": """
{Being brave does not mean that you have no fear|You can be afraid and brave at the same time}, [Hero] thought.
From that night on, [he] was {a little braver|not so afraid any more}.
""",
    "patience": """
[Hero] learned that {good things take time|some things cannot be hurried|waiting is easier when you care for something}.
""",
}
BRIDGE = """
{Some weeks later|Not long after that|The next month|A few days later}, {there was another adventure|something else happened|the [thing] caused trouble again}.
But that was not {all|the end of it}. {Some weeks later|A few days later|In the same month}, {there was another adventure|something else happened}.
"""
CLOSING = """
{They went home|[Hero] went home} {happy|with a smile|before it got dark}.
It was {a very good day|the best day of the year|a day to remember}.
{That evening|At bedtime}, [Hero] told [his] [elder] the whole story.
The end.
And they all lived happily ever after.
[Hero] smiled {all the way home|for the rest of the day|in [his] sleep that night}.
"""


def open_story(t: Telling, owning: bool = True, friend: bool = True) -> None:
    """Who the story is about, what they own, who their friend is; a second episode only gets a bridge."""
    c = t.cast
    if t.episode:
        t.say(BRIDGE)
        return
    homes = w.HOMES if c.kind in ("girl", "boy") else w.ANIMAL_HOMES
    t.say(OPENING, home=t.rng.choice(homes))
    if owning:
        t.say(OWNING)
    if friend:
        t.say(FRIEND)
    t.say(WEATHER, chance=0.25)


def close_story(t: Telling, moral: str) -> None:
    """What was learned, and the last sentence; a story that goes on ends its first episode without them."""
    if t.cast.long and t.episode == 0:
        return
    if t.rng.random() < 0.8 or t.cast.short:
        t.say(MORALS[moral])
    t.say(CLOSING, chance=0.5)


# --- plots ----------------------------------------------------------------------------------------------------


def lost(t: Telling) -> None:
    """The thing goes missing; the hero searches places until the one where it is."""
    r = t.rng
    open_story(t)
    t.say("""
    One day, [Hero] took the [thing] to [place].
    One {morning|afternoon}, [Hero] and [Friend] went to [place] with the [look].
    [Hero] {carried|brought} the [thing] to [place], because [he] wanted to {show it to [Friend]|play there}.
    """)
    t.say("""
    {[he] played and ran and climbed|[he] sat down for lunch and looked at the clouds|[he] picked some flowers}. When [he] {looked up|turned around|was ready to go home}, the [thing] was gone.
    [he] put it down {for a moment|for just a minute} to {tie [his] shoe|watch a bird|drink some water|listen to a strange sound}. {Then it was gone|A minute later the [thing] was gone}.
    On the way home, [Hero] noticed that the [thing] was {gone|missing|not in [his] bag}.
    A {strong|sudden} wind came, and when it was over, the [thing] was {gone|nowhere to be seen}.
    """)
    t.say("""
    "Where is my [thing]?" {[he] cried|asked [Hero]|said [Hero]}. [he] felt {sad|worried|very sad|terrible}.
    [Hero] was {sad|very sad|close to tears}. "I lost my [thing]," [he] {said|told [Friend]|whispered}.
    [Hero] began to cry. "My [look] is {gone|lost}," [he] said.
    """)
    t.say("""
    "Do not worry," said [Friend]. "We will {find it|look for it} together."
    [Friend] {hugged [him]|held [his] hand|came running}. "Let us look for it," [fhe] said.
    "Let us think," said [Friend]. "Where did you {see it last|have it last}?"
    """)
    finder = r.choice((t.cast.hero, t.cast.friend))
    spots = r.sample(w.HIDING, r.choice((1, 2, 2, 3) if not t.cast.short else (1, 2)))
    for i, spot in enumerate(spots[:-1]):
        t.say("""
        {First|First of all}, they looked [spot], but {the [thing] was not there|they found only [junk]}.
        They {searched|looked} [spot] first. {There was nothing|They found [junk], but no [thing]}.
        """ if i == 0 else """
        Then they looked [spot]. {There was nothing there|They found only [junk]}.
        {Next|After that}, [Friend] looked [spot], but {it was not there|there was only [junk]}.
        """, spot=spot, junk=r.choice(("an old shoe", "some dry leaves", "a sleepy beetle", "a broken cup", "a ball of string",
                                      "a very small snail", "a lost button")))
    t.say("""
    {At last|Finally|In the end}, [who] looked [spot], and there {was the [thing]|it was}.
    {Just then|Suddenly}, [who] saw something {strange|bright} [spot]. It was the [thing].
    Then [who] {heard|noticed} a {small bird|little mouse} that {sat|waited} [spot]. Beside it lay the [thing].
    """, spot=spots[-1], who=finder)
    t.say("""
    "I found {it|my [thing]}," {called|said} [Hero] and hugged [Friend] and the [thing].
    "{Here it is|I found it}," {called|said} [Hero]. [he] {held|hugged} the [thing] {tightly|with both arms}.
    """ if finder == t.cast.hero else """
    "{Here it is|I found it}," {called|said} [Friend]. [Hero] {held|hugged} the [thing] {tightly|with both arms}.
    "{Look, here it is|Here is your [thing]}," said [Friend]. "Thank you," said [Hero] and {held|hugged} the [thing].
    """)
    t.say("""
    "{Hurray|Hurrah}," they both called. [Hero] was so {happy|glad} that [he] {danced|jumped up and down|laughed}.
    """, chance=0.4)
    close_story(t, "lost")


def broken(t: Telling) -> None:
    """The thing breaks; one way to mend it fails, another one works."""
    r = t.rng
    open_story(t)
    t.say("""
    One day, while [Hero] was {playing|running|walking} {at|near} [place], [he] {fell|slipped}, and the [thing] broke.
    One {morning|afternoon}, the [thing] fell {down|from a wall|off the table} and broke into [n] pieces.
    One day, there was a {loud|terrible} crack. A part of the [thing] had {come off|broken off}.
    """, n=r.choice(("two", "three", "four")))
    t.say("""
    "Oh no, my [thing]," {cried [Hero]|said [Hero]}. [he] {sat down and cried|did not know what to do|felt very sad}.
    [Hero] {picked up the pieces|looked at the broken [thing]} and felt {sad|awful|like crying}.
    """)
    fixes = r.sample(["some glue", "a piece of string", "a small nail", "some tape", "a bit of wire", "a strong ribbon"], 2)
    t.say("""
    [he] tried to {fix|mend|repair} it with [bad], but {it fell apart again|it did not hold|that made it worse}.
    First [he] tried [bad]. {It did not work|It did not help}.
    """, bad=fixes[0], good=fixes[1], chance=0.7)
    t.slots.update(good=fixes[1])
    t.say("""
    Then [Friend] {came by|knocked on the door|saw [him]}. "{Maybe I can help|Let me see the [thing]}," said [Friend].
    [he] {went to|asked} [Friend] {for help|what to do}. "{We can mend it|Let us try together}," [fhe] said.
    "I have an idea," said [Friend], who {liked to fix things|always had good ideas}.
    """)
    t.say("""
    [Friend] {took|got|brought} [good], and [Hero] held the pieces {together|still}. {They worked slowly and carefully|It took a long time}.
    {Together they|They both} used [good] and {worked until evening|waited until it was dry|did not hurry}.
    """)
    t.say("""
    {At last|In the end|When they were done}, the [thing] {was whole again|worked again|looked almost like new}.
    {Soon|Before dinner}, the [look] was {as good as new|in one piece again}. There was only a {small|thin} line where it had been broken.
    """)
    t.say("""
    "It is even better now," said [Hero], "because we {fixed it|mended it} together."
    "Thank you, [Friend]," said [Hero]. "You {are a true friend|saved my [thing]}."
    [Hero] was {so happy that [he] gave [Friend] a hug|very grateful}.
    """)
    close_story(t, "mend")


def wish(t: Telling) -> None:
    """The hero wants the thing, counts the coins and earns what is missing."""
    r = t.rng
    price = r.randint(4, 12)
    coins = r.randint(0, 2)
    open_story(t, owning=False, friend=r.random() < 0.5)
    number = w.NUMBER_WORDS
    t.slots.update(price=number[price], have=number[coins] if coins else "no",
                   coin="coin" if coins == 1 else "coins")
    t.say("""
    More than anything, [Hero] wanted {[a_look]|a [thing] of [his] own|to have [a_look]}.
    One day at [shop], [Hero] saw [a_look]. "{How I wish I had it|I would love to have that [thing]}," [he] {said|thought}.
    [he] dreamed of [a_look] {every night|day and night}.
    """, shop=r.choice(("the market", "the shop", "the fair")))
    t.say("""
    The [thing] cost [price] coins, but [Hero] had {[have] [coin]|only [have] [coin]}.
    "It costs [price] coins," said the {shopkeeper|seller}. [Hero] {looked into [his] pocket|counted}. [he] had [have] [coin].
    """ if coins != 0 else """
    The [thing] cost [price] coins, but [Hero] had no coins at all.
    "It costs [price] coins," said the {shopkeeper|seller}. [Hero] {looked into [his] pocket|looked}. It was empty.
    """)
    t.say("""
    "I will {earn|work for} the {money|rest}," {said [Hero]|[he] decided|[he] said}.
    [his] [elder] said, "You can earn {it|the money} if you {work|help people}."
    [Hero] was sad, but then [he] had an idea. [he] could {work|help the neighbors}.
    """)
    jobs = r.sample(["swept the yard", "carried water", "picked apples", "washed the windows", "fed the hens",
                     "watered the flowers", "cleaned the barn", "brought letters to the neighbors", "stacked the wood",
                     "sold lemonade"], 6)
    while coins < price and jobs:
        pay = price - coins if len(jobs) == 1 else min(price - coins, r.randint(2, 4))
        coins += pay
        t.say("""
        [when] [he] [job] {and got|and earned} [pay]. Now [he] had [have].
        [when] [he] [job]. [someone] gave [him] [pay], so {now [he] had|that made} [have].
        """, when=("First," if len(jobs) == 6 else r.choice(("Then", "Next,", "After that,", "The next day,"))),
              job=jobs.pop(), someone=r.choice(("The farmer", "A neighbor", "The baker", "An old woman")),
              pay=f"{number[pay]} coin{'s' if pay > 1 else ''}", have=f"{number[coins]} coins")
    t.say("""
    [Hero] {ran|hurried|went} {back|to the shop} with all [price] coins and {bought|paid for} the [thing].
    That was enough. [Hero] {paid the [price] coins|put the [price] coins on the table} and took the [thing] home.
    """)
    t.say("""
    {At last|Finally}, the [look] {was [his]|was [his] own|belonged to [him]}. "{I earned it myself|I worked for it}," said [Hero] proudly.
    [Hero] {held|carried} the [thing] {carefully|like a treasure}. {No [thing] had ever looked so fine|[his] [elder] was proud of [him]}.
    """)
    close_story(t, "work")


def share(t: Telling) -> None:
    """Two friends want the same thing; they quarrel and find a fair way."""
    r = t.rng
    food = t.cast.group == "food"
    open_story(t, owning=not food)
    t.say("""
    One day, [Friend] came to [place]. "May I {have|hold|use} the [thing]?" asked [Friend].
    One afternoon at [place], [Friend] also wanted the [thing].
    """ if not food else """
    One day, [Hero] and [Friend] were {very hungry|hungry} at [place]. They had only one [thing].
    One day, [his] [elder] gave [Hero] [a_look]. [Friend] {looked at it|saw it} and {felt|was} hungry too.
    """)
    t.say("""
    "No, it is mine," said [Hero]. {They pulled and shouted|Both were angry}, {and soon nobody was having fun|and [Friend] began to cry}.
    [Hero] {held the [thing] tightly|turned away}. "{I want it for myself|I do not want to share}," [he] said. [Friend] was {sad|hurt}.
    """)
    t.say("""
    Then [Hero] {looked at [Friend]|saw that [Friend] was sad} and {felt sorry|did not feel good}.
    But {alone|by [himself]}, [Hero] {felt lonely|was not happy}. [he] looked at the [thing] and thought of [Friend].
    [his] [elder] {saw them|came by} and said, "{What would be fair|How can you both be happy}?"
    """)
    t.say("""
    "I am sorry," said [Hero]. "{Let us take turns|You can have the [thing] first}."
    "{We can take turns|First you, then me}," said [Hero] {and held out the [thing]|and put down the [thing]}. "I am sorry, [Friend]."
    """ if not food else """
    "I am sorry," said [Hero]. [he] {cut|broke} the [thing] in two and gave one half to [Friend].
    [Hero] {divided|cut} the [thing] into two {equal|fair} parts. "{One for you and one for me|Here, this half is yours}," [he] said.
    """)
    t.say("""
    [Friend] {smiled|laughed}, and they {played|had fun} with the [thing] until {the sun went down|dinner}.
    So they {took turns with|shared} the [thing], and {the whole afternoon flew by|both were happy}.
    """ if not food else """
    They {sat down|sat side by side} and ate. The [thing] {tasted|was} {wonderful|sweet|better than ever}.
    [Friend] smiled, and they ate the [thing] together {under a tree|in the sun}.
    """)
    if food and r.random() < 0.4:
        t.say("""
        "Next time, I will {bring|share} something with you," said [Friend].
        """)
    close_story(t, "meal" if food else "share")


def gift(t: Telling) -> None:
    """The hero wants to give the thing to the friend; something goes wrong on the way."""
    r = t.rng
    open_story(t, owning=False)
    t.say("""
    Tomorrow was [Friend]'s birthday, and [Hero] wanted to {give [fhim] something special|find the right gift}.
    One day, [Friend] was {ill|sad}. "{I want to cheer [fhim] up|I must do something}," thought [Hero].
    """)
    t.say("""
    [he] {thought for a long time|asked [his] [elder]}. Then [he] {decided|knew}: [he] would {give|bring} [Friend] [a_look].
    [he] {looked for|went to find} [a_look], because [Friend] {loved such things|had always wanted one}.
    [his] [elder] helped, and {at the market|at the fair|in a small shop} they found [a_look].
    """)
    trouble = r.choice(("rain", "slip", "wait"))
    t.say({"rain": """
    On the way, {it began to rain|dark clouds came and it rained}. [Hero] {hid|put} the [thing] under [his] coat so that it stayed dry.
    """, "slip": """
    On the way, [Hero] {tripped over a root|slipped in the mud}, but [he] held the [thing] {high in the air|tightly}, and it was safe.
    """, "wait": """
    But when [he] {came|got} to [Friend]'s house, nobody was there. So [Hero] sat down with the [thing] and waited.
    """}[trouble])
    t.say("""
    "{This is for you|I brought you something}," said [Hero], and [he] gave [Friend] the [thing].
    When [Friend] opened the door, [Hero] held out the [thing]. "{For you|I hope you like it}," [he] said.
    """)
    t.say({"rain": """
    "You are all wet," said [Friend], "but the [thing] is {dry|not}."
    """, "slip": """
    "You are covered in mud," said [Friend], "but the [thing] is {beautiful|perfect}."
    """, "wait": """
    "You waited for me all this time?" asked [Friend]. [Hero] nodded.
    """}[trouble].replace("{dry|not}", "dry"))
    t.say("""
    [Friend] {looked at|took} the [look] and {smiled|beamed}. "It is the {best|nicest} gift {of all|ever}," [fhe] said.
    "Thank you, [Hero]," said [Friend]. "I will {keep this [thing] forever|always think of you when I see this [thing]}."
    """)
    close_story(t, "help")


def stuck(t: Telling) -> None:
    """The thing is stuck at some height; tools are tried until one reaches."""
    r = t.rng
    open_story(t)
    height = r.randint(2, 4)
    t.say("""
    One {windy|bright} day, [Hero] {played|was} with the [thing] {at|near} [place]. Suddenly {it flew up|a gust of wind took it}, and it got stuck [where].
    One day {at|near} [place], [Hero] threw the [thing] {too high|up into the air}. It did not come down. It was stuck [where].
    """, where=r.choice(("in a tall tree", "on the roof of a barn", "on a high wall", "in the branches of an oak")))
    t.say("""
    "{Oh no|Oh dear}," said [Hero]. "How {can|will} I get my [thing] {down|back}?"
    [Hero] {stood below and looked up|stretched [his] arms}. The [thing] was {much too high|far away}.
    """)
    tools = [("jumped as high as [he] could", 1), ("climbed on a box", 1), ("tried with a stick", 2), ("threw a rope at it", 2),
             ("fetched a short ladder", 2), ("used a long pole", 3), ("stood on [Friend]'s shoulders", 3)]
    tries = r.sample([text for text, reach in tools if reach < height], r.randint(1, 2) if height > 2 else 1)
    for i, attempt in enumerate(tries):
        t.say("""
        [first] [he] [attempt], but {it was not high enough|that was too short|the [thing] did not move}.
        """, first="First," if i == 0 else "Then", attempt=expand(r, attempt, t.slots))
    t.say("""
    Then [Friend] {came along|had an idea|saw what had happened}. "{Wait here|I know what to do}," said [Friend].
    [Hero] {called|asked} [Friend] for help. "{Of course I will help you|We can do it together}," said [Friend].
    """)
    t.say("""
    [Friend] {came back with|brought} [best], and {together|with that} they {got|reached} the [thing].
    They {took|used} [best]. {Slowly and carefully|Little by little}, they {pulled|brought} the [thing] down.
    """, best=r.choice(("a very long ladder", "a tall ladder", "a long pole with a hook")))
    t.say("""
    "{Thank you|You did it}, [Friend]," said [Hero] and {hugged|held} [his] [thing].
    [Hero] {laughed|was happy}. "{Alone I could not do it|Thank you, [Friend]}," [he] said.
    """)
    close_story(t, "asked")


def found(t: Telling) -> None:
    """The hero finds a thing that belongs to the friend and gives it back."""
    r = t.rng
    open_story(t, owning=False, friend=False)
    t.say("""
    One day, {on the way to|at|near} [place], [Hero] {found|saw} [a_look] {on the ground|in the grass|beside the path}.
    One morning, [he] {went for a walk to|walked to} [place]. There, [spot], lay [a_look].
    """, spot=r.choice(w.HIDING))
    t.say("""
    "{What a fine [thing]|How beautiful}," {thought|said} [Hero]. [he] wanted to keep it.
    [Hero] {picked it up|looked at it}. {Nobody was there|No one saw [him]}. [he] could {take it home|keep the [thing]}.
    """)
    t.say("""
    But then [he] thought, "{Someone must be sad without it|Somebody is looking for this [thing]|It does not belong to me}."
    But {it was not [his] [thing]|[he] knew that it belonged to somebody}.
    """)
    asked = r.sample(["the baker", "the postman", "the fisherman", "the teacher", "the gardener", "the miller", "the shepherd"],
                     r.choice((1, 2)))
    for i, person in enumerate(asked):
        t.say("""
        [he] asked [person], "{Is this your [thing]|Did you lose [a_thing]}?" "No," said [person]{. "Ask further on."|, "it is not mine."}
        """ if i == 0 else """
        Then [he] asked [person], but it {was not [person]'s [thing] either|did not belong to [person]}.
        """, person=person)
    t.say("""
    {At last|Then|Near the bridge}, [he] met [a_fkind] named [Friend], who was {crying|looking for something|sad}.
    {At last|In the end}, [he] {heard someone cry|saw someone under a tree}. It was [a_fkind] named [Friend].
    """)
    t.say("""
    "I lost my [thing]," said [Friend]. "{Is this it|Here it is}," said [Hero] and {held out|gave [fhim]} the [look].
    "{Is this your [thing]|Are you looking for this [thing]}?" asked [Hero]. "{Yes|Yes, that is mine}," said [Friend].
    """)
    t.say("""
    [Friend] was so {happy|glad} that [fhe] {hugged [Hero]|gave [Hero] [reward]}.
    "You are {honest|very kind}," said [Friend] and gave [Hero] [reward].
    """, reward=r.choice(("a big red apple", "a honey cookie", "a warm hug", "a bunch of flowers", "a piece of cake")))
    t.say("""
    From that day on, {they|[Hero] and [Friend]} were friends.
    "Will you play with me?" asked [Friend], and {they played until evening|they became friends}.
    """)
    close_story(t, "found")


def honest(t: Telling) -> None:
    """The hero breaks somebody's thing, hides it, and tells the truth."""
    open_story(t, owning=False, friend=False)
    t.say("""
    [his] [elder] had [a_look] that {was very old|[ehe] loved|stood on a shelf}.
    On a shelf stood [a_look]. It belonged to [his] [elder].
    """)
    t.say("""
    "Please {be careful with|do not touch} the [thing]," [his] [elder] {always said|had said}. But one day, [Hero] {took it down|wanted to see it}.
    One day, [Hero] {was alone|ran through the room}. [he] {bumped into the shelf|wanted to look at the [thing]}.
    """)
    t.say("""
    The [thing] {slipped from [his] hands|fell to the floor} and broke.
    {Crash|Oh no}. The [thing] {lay on the floor|fell down}, and it was broken.
    """)
    t.say("""
    [Hero] was {scared|afraid}. [he] hid the pieces {under [his] bed|in a box|behind the door} and {said nothing|kept quiet}.
    "{What have I done|Nobody must know}," thought [Hero]. [he] put the {broken [thing]|pieces} {in a drawer|under a blanket}.
    """)
    t.say("""
    "Have you seen my [thing]?" asked [his] [elder]. {[Hero] shook [his] head|"No," said [Hero]}, and [his] {face became hot|stomach hurt}.
    But all day [he] {could not eat|could not play}, because [he] thought of the [thing].
    """)
    t.say("""
    {That night|In the evening|At last}, [Hero] {went to|ran to} [his] [elder]. "I broke {your [thing]|the [thing]}," [he] said. "I am sorry."
    {Finally|In the end}, [Hero] brought the pieces to [his] [elder]. "It was me," [he] said. "I am {so|very} sorry."
    """)
    t.say("""
    [his] [elder] {was quiet for a moment|looked at [him]}. "Thank you for telling {me|the truth}," [ehe] said. "{We can fix it together|You matter more than any [thing]}."
    "I am sad about the [thing]," said [his] [elder], "but I am {glad|proud} that you told me."
    """)
    t.say("""
    {Together they|The next day, they} {glued|mended} the [thing]. {It was not perfect, but it was whole|You could hardly see the cracks}.
    Then [Hero] and [his] [elder] {glued|mended} the [thing] together.
    """)
    close_story(t, "honest")


def trade(t: Telling) -> None:
    """The hero gives the thing away for another one, regrets it, and trades back."""
    r = t.rng
    open_story(t)
    other = r.choice([o for o, g in w.OBJECTS.items() if g in ("toy", "treasure", "useful") and o != t.cast.thing])
    t.slots.update(other=other, a_other=w.article(other))
    t.say("""
    One day, [Friend] {showed [him]|had} [a_other]. "{Shall we trade|Let us trade}?" asked [Friend]. "Your [thing] for my [other]."
    One day at [place], [Hero] saw that [Friend] had [a_other]. "{I will give you my [thing] for it|Let us trade}," said [Hero].
    """)
    t.parts[-1] = t.parts[-1].replace('"Let us trade?"', '"Shall we trade?"')
    t.say("""
    So [Hero] gave [Friend] the [thing] and {took|went home with} the [other].
    They {shook hands|agreed}. [Friend] took the [thing], and [Hero] took the [other].
    """)
    t.say("""
    At first, [Hero] was {happy|pleased}. But {in the evening|that night}, [he] missed [his] [thing].
    The [other] was {nice|fine}, but it was not [his] [look]. {[he] could not sleep|[he] felt sad}.
    """)
    t.say("""
    The next {morning|day}, [he] went to [Friend]. "I {miss|want} my [thing]," [he] said. "{Can we trade back|Would you trade back}?"
    "I made a mistake," [Hero] told [Friend] {the next day|in the morning}. "May I have my [thing] back?"
    """)
    t.say("""
    [Friend] {smiled|laughed}. "I miss my [other] too," [fhe] said. So they {traded back|gave everything back}.
    "{Of course|Yes}," said [Friend]. "I missed the [other] {all night|too}." And they {traded back|traded again}.
    """)
    t.say("""
    [Hero] {hugged|held} the [thing]. "{Now I know how much I like you|I will not give you away again}," [he] said.
    [Hero] was glad to have the [look] again.
    """)
    close_story(t, "trade")


def skill(t: Telling) -> None:
    """The hero learns to use the thing; the number of failed tries is counted."""
    r = t.rng
    sound = t.cast.group == "sound"
    open_story(t)
    t.say("""
    [he] wanted to {learn to ride|ride} the [thing], but {it was hard|it looked so hard}.
    But [Hero] did not know how to ride the [thing] yet.
    """ if not sound else """
    [he] wanted to {learn to play|play} the [thing], but {it was hard|no nice sound came out}.
    But [Hero] did not know how to play the [thing] yet.
    """)
    fails = r.randint(1, 3)
    noises = r.sample(["it sounded like an angry cat", "it only made a squeak", "the tune was all wrong",
                       "everyone covered their ears"], 3)
    for i in range(fails):
        t.say("""
        The [nth] time, [he] {fell off|fell into the grass|lost [his] balance}{.|, and [his] knee hurt.}
        """ if not sound else """
        The [nth] time, [noise].
        """, nth=("first", "second", "third")[i], noise=noises[i])
    t.say("""
    "I {will never learn it|cannot do it}," said [Hero] {sadly|and sat down}.
    [Hero] wanted to give up. "{It is too hard|This is too hard for me}," [he] said.
    """)
    t.say("""
    "{Do not give up|Try again}," said [Friend]. "{I will help you|Nobody can do it at once}."
    [Friend] sat down beside [him]. "{You are better than yesterday|Go slowly}," [fhe] said. "{Try once more|Let us try again}."
    """)
    t.say("""
    So [Hero] practiced {every day|for a whole week|morning and evening}.
    Day after day, [Hero] {tried again|practiced}, and [Friend] {cheered|helped}.
    """)
    t.say("""
    The [nth] time, {it worked|[Hero] did it}. [he] rode the [thing] all the way {to|around} [place] {without falling|and back}.
    """ if not sound else """
    The [nth] time, {it worked|[he] did it}. [he] played a whole {song|tune} on the [thing], and {everybody clapped|[Friend] danced}.
    """, nth=("second", "third", "fourth")[fails - 1])
    t.say("""
    "{I can do it|Look at me}," called [Hero]. [Friend] was {very proud|happy for [him]}. [he] {hugged|patted} the [thing].
    "You see?" said [Friend]. "{I knew you could do it|You did not give up}." [Hero] {smiled|nodded} and patted the [thing].
    """)
    close_story(t, "try")


def fear(t: Telling) -> None:
    """The hero is afraid; the thing and the friend help."""
    r = t.rng
    dark = t.cast.group == "light"
    what = "the dark" if dark else r.choice(("thunder", "deep water", "the big slide", "the old house", "the tall bridge"))
    open_story(t, owning=False)
    t.say("""
    [Hero] was afraid of [fear]. {Nobody knew it|[he] did not tell anyone but [Friend]}.
    There was only one thing that [Hero] was afraid of, and that was [fear].
    """, fear=what)
    t.say("""
    One {day|evening}, [his] [elder] gave [him] [a_look]. "{Take it with you|It will help you}," [ehe] said.
    One day, [Friend] brought [him] [a_look]. "{When you are afraid, hold it|It helped me when I was afraid}," said [Friend].
    """)
    t.say("""
    {That night|Soon}, [Friend] {was late|did not come home}, and somebody had to {look for [fhim]|go out and find [fhim]}. It was {very dark|a night without a moon}.
    That night, they heard a {small cry|sound} outside. A {kitten|lamb} was lost in the dark.
    """ if dark else """
    The next day, [what_comes], and [Hero] {shook|wanted to run away}. [he] held the [thing] in [his] hand.
    Then {one day|soon after}, [what_comes]. [Hero]'s {heart beat fast|knees shook}. [he] {looked at|held} the [thing].
    """, what_comes={"thunder": "there was a great storm", "deep water": "they went to swim in the lake",
                     "the big slide": "they went to the playground", "the old house": "their ball flew into the old house",
                     "the tall bridge": "they had to cross the tall bridge"}.get(what, ""))
    t.say("""
    [Hero] {lit|took} the [thing]. "I am afraid," [he] {whispered|said}, "but I will go." The [thing] {made a warm circle of light|gave a warm light}.
    """ if dark else """
    "I am afraid," [he] {whispered|said}. "{I am here|I am with you}," said [Friend]. {[he] took a deep breath|They counted to three}.
    """)
    t.say("""
    Step by step, [he] went {on|into the dark}, and the [thing] {showed [him] the way|kept the dark away}. {At last|Behind a tree}, [he] found {the one [he] was looking for|what [he] was looking for}.
    """ if dark else """
    Step by step, [Hero] went on with the [thing] in [his] hand. {Nothing bad happened|It was not so bad after all}.
    {Slowly|After a while}, the fear became {smaller|small}, and [he] held the [thing] more loosely. "{I did it|That was all}," [he] said {and laughed|with a smile}.
    """)
    t.say("""
    "You were so brave," said [Friend]. [Hero] {looked at|held up} the [look] and smiled.
    "You are {very brave|the bravest of all}," said [Friend]. [Hero] {smiled and held up the [thing]|looked at the [thing] and nodded}.
    """)
    close_story(t, "brave")


def cold_or_hungry(t: Telling) -> None:
    """A stranger needs exactly what the hero has."""
    food = t.cast.group == "food"
    open_story(t, friend=False, owning=not food)
    if food:
        t.say("""
        [his] [elder] had made [him] [a_look] for {lunch|the road}.
        In [his] bag, [he] had [a_look] for lunch.
        """)
    t.say("""
    On a {cold|gray} day, [Hero] went to [place]. There [he] met [a_fkind] named [Friend], who was {[need]|alone and [need]}.
    One day {on the way to|near} [place], [he] saw [a_fkind] who sat {under a tree|on a stone} and was [need]. "I am [Friend]," {the [fkind] said|said the [fkind]}.
    """, need="very hungry" if food else "very cold")
    t.say("""
    "I have not eaten {since yesterday|all day}," said [Friend].
    "{My lunch fell into the river|I have nothing to eat}," said [Friend] {sadly|with a sigh}.
    """ if food else """
    "I am {so cold|freezing}," said [Friend] and {shivered|shook}.
    [Friend] {shivered|was shaking}. "{The wind is so cold|I forgot my coat}," [fhe] said.
    """)
    t.say("""
    [Hero] looked at the [thing]. {[he] wanted to keep it|It was [his] only one}. But {then [he] looked at [Friend]|[he] felt sorry for [Friend]}.
    [Hero] thought {about|of} [his] [thing] {for a moment|for a while}. {Then [he] smiled|It was not hard to decide}.
    """)
    t.say("""
    "{Take half of|Let us share} my [thing]," said [Hero]. They {sat|sat down} and ate together.
    [he] broke the [thing] in two. "{Here|This is for you}," said [Hero], and they both ate.
    """ if food else """
    "Take my [thing]," said [Hero]. "{It will keep you warm|You need it more than I do}."
    [he] {gave [Friend] the [thing]|gave the [thing] to [Friend]}. "{Is that better|Are you warm now}?" asked [Hero].
    """)
    t.say("""
    "{Thank you|You are so kind}," said [Friend]. "That was the best [thing] {of my life|I ever ate}."
    """ if food else """
    "{Thank you|You are so kind}," said [Friend]. "{With this [thing], I am warm|This [thing] is so warm}."
    """)
    t.say("""
    {A week later|Some days later}, [Hero] {was lost in|hurt [his] foot near} [place]. It was [Friend] who {found [him]|helped [him]} and {brought [him] home|carried [him] home}.
    The next day, [Friend] {came to visit|stood at the door} with {a basket of berries|a bunch of flowers} for [Hero].
    """, chance=0.8)
    close_story(t, "help")


def grow(t: Telling) -> None:
    """The hero plants the thing and waits, week after week."""
    r = t.rng
    open_story(t, owning=False)
    t.say("""
    One {spring day|day in spring}, [his] [elder] gave [him] [a_look]. "{Plant it and take care of it|It needs water and time}," [ehe] said.
    One day, [Hero] got [a_look] from [his] [elder].
    """)
    t.say("""
    [Hero] {dug a hole|made a small hole} {in the garden|near the fence} and {put the [thing] into it|planted the [thing]}.
    With {a small spade|[his] hands}, [he] planted the [thing] in the {soft|dark} earth.
    """)
    weeks = r.randint(2, 4)
    for i in range(weeks - 1):
        t.say("""
        {After [n] [week], nothing had changed|[n] [week] went by, and nothing happened}. {[Hero] gave it more water|"Are you asleep?" [he] asked the [thing]}.
        """ if i == 0 else """
        After [n] [week], {there was still only earth|it was a little bigger|there were two small leaves}. [he] {gave it water|pulled out the weeds|sang to it}.
        """, n=w.NUMBER_WORDS[i + 1], week="week" if i == 0 else "weeks")
    t.say("""
    "{It will never grow|Maybe it does not like me}," said [Hero]. "{Wait|Be patient}," said [Friend]. "{Good things are slow|Give it time}."
    """, chance=0.8)
    t.say("""
    After [n] weeks, [Hero] {ran into the garden|looked out of the window} and {could not believe [his] eyes|laughed with joy}. The [thing] had {grown tall|grown as tall as [Friend]|grown, strong and green}.
    """, n=w.NUMBER_WORDS[weeks])
    t.say("""
    "{Look|See}, [Friend]," called [Hero]. "My [thing] {has grown|is so big}."
    [Friend] came to see the [thing]. "You {took good care of it|were very patient}," [fhe] said.
    """)
    close_story(t, "patience")


def drift(t: Telling) -> None:
    """The thing is carried away by the water, past landmarks, until it is caught."""
    r = t.rng
    open_story(t)
    t.say("""
    One day, [Hero] {let the [thing] swim in|put the [thing] on} the {river|stream}. {The water was fast|The wind was strong}, and it {floated away|was carried away}.
    One day by the {river|stream}, the [thing] {fell into the water|slipped from [his] hand into the water} and floated away.
    """)
    t.say("""
    "{Come back|Stop}," {cried|called} [Hero], and [he] ran along the bank. [Friend] ran too.
    "My [thing]," cried [Hero]. [he] and [Friend] ran after it.
    """)
    marks = r.sample(["past the old mill", "under the bridge", "around a big rock", "past three ducks", "over a small waterfall",
                      "past a sleepy fisherman", "through the reeds"], r.choice((1, 2, 3)))
    for i, mark in enumerate(marks):
        t.say("""
        {First it floated|The [thing] floated} [mark].
        """ if i == 0 else """
        Then it {floated|went|swam} [mark]{.|, faster and faster.}
        """, mark=mark)
    t.say("""
    {At last|Finally}, [Friend] {found a long branch|waded into the water|used a net}, and {together they caught|[fhe] caught} the [thing].
    Then the [thing] {stopped|was caught} between two stones, and [Friend] held [Hero]'s hand while [he] {reached for it|pulled it out}.
    """)
    t.say("""
    The [thing] was {wet|very wet}, but it was safe. "Thank you, [Friend]," said [Hero].
    "We {did it|saved it}," said [Friend]. [Hero] {dried|hugged} the [wet] [thing].
    """, wet="wet")
    close_story(t, "lost")


def creature(t: Telling) -> None:
    """The hero meets a creature that has a trouble; a guess is wrong, then the right help is found."""
    r = t.rng
    trouble, wrong, right = r.choice([
        ("was lonely", "told it a joke", "invited it to play"), ("was hungry", "gave it a flower", "shared [his] lunch with it"),
        ("could not sleep", "sang a loud song", "sang a quiet lullaby"), ("had hurt its foot", "gave it a cookie", "tied a soft cloth around its foot"),
        ("had lost its way", "showed it a cave", "showed it the way home"), ("was cold", "fanned it with a leaf", "covered it with a blanket"),
        ("was afraid of the dark", "closed the curtain", "lit a small lamp for it"), ("was bored", "gave it a stone", "taught it a new game")])
    t.slots.update(trouble=trouble, wrong=expand(r, wrong, t.slots), right=expand(r, right, t.slots))
    open_story(t, owning=False, friend=False)
    t.say("""
    One day, {near|on the way to} [place], [he] met [a_look].
    One {morning|evening}, [Hero] {heard a strange sound|saw big footprints} near [place]. It was [a_look].
    """)
    t.say("""
    [Hero] was {surprised|a little afraid}, but the [thing] {looked sad|did not look dangerous}. "{What is the matter|Why are you sad}?" [he] asked.
    "{Hello|Good day}," said [Hero]. The [thing] {looked up|sighed}. "{What is wrong|Can I help you}?" asked [Hero].
    """)
    t.say("""
    The [thing] {told [him] that it|said that it} [trouble].
    It turned out that the [thing] [trouble].
    """)
    t.say("""
    First, [Hero] [wrong], but that did not help.
    [Hero] [wrong]. The [thing] shook its head. That was not it.
    """, chance=0.75)
    t.say("""
    {Then|So} [he] [right]{.|, and the [thing] began to smile.}
    Then [Hero] had {a better|an} idea. [he] [right].
    """)
    t.say("""
    "{Thank you|That is much better}," said the [thing]. "{You are kind, [Hero]|Nobody was ever so kind to me}."
    The [thing] was so {happy|glad} that it {danced|laughed}. "{Thank you, [Hero]|You are a true friend}," it said.
    """)
    t.say("""
    {From that day on|After that}, [Hero] and the [thing] {met every week|were friends|played together near [place]}.
    In return, the [thing] {carried [him] home|showed [him] the stars|took [him] for a long walk}, and [Hero] and the [thing] {became friends|laughed all the way}.
    """)
    close_story(t, "help")


def plots_for(cast: Cast) -> list[Callable[[Telling], None]]:
    """The plots in which the cast's thing makes sense."""
    group, thing = cast.group, cast.thing
    if group == "creature":
        return [creature]
    if group == "food":
        return [share, cold_or_hungry, gift]
    if group == "growing":
        return [grow, grow, gift]
    plots: list[Callable[[Telling], None]] = [lost, wish, gift, found, trade, share]
    if thing in w.BREAKABLE:
        plots += [broken, broken]
    if thing in w.FRAGILE:
        plots += [honest, honest]
    extra = {"light": [fear, fear], "warm": [cold_or_hungry, cold_or_hungry], "flying": [stuck, stuck, lost],
             "rolling": [stuck], "sound": [skill, skill], "ride": [skill, skill], "floating": [drift, drift],
             "toy": [fear], "treasure": [fear]}
    plots += extra.get(group, [])
    if group == "ride":
        plots = [plot for plot in plots if plot not in (fear, found)]
    return plots


def episodes_for(cast: Cast) -> list[Callable[[Telling], None]]:
    """The different plots in which the hero owns the thing and has the friend, so that two of them can follow."""
    return sorted({plot for plot in plots_for(cast) if plot in (lost, broken, stuck, trade, skill, drift)
                   or (plot is share and cast.group != "food")}, key=lambda plot: plot.__name__)


# --- casting --------------------------------------------------------------------------------------------------


def draw_name(rng: random.Random, gender: str, kind: str) -> str:
    """A first name that suits the character; about one in four is made up."""
    if rng.random() < 0.25:
        return w.pseudo_name(rng)
    if kind not in ("girl", "boy") and rng.random() < 0.5:
        return rng.choice(w.PETS)
    return rng.choice(w.GIRLS if gender == "f" else w.BOYS)


def draw_kind(rng: random.Random, gender: str, child: float) -> str:
    """ "girl" or "boy" with probability `child`, else a species."""
    return ("girl" if gender == "f" else "boy") if rng.random() < child else rng.choice(w.SPECIES)


def draw_thing(rng: random.Random, made_up: bool) -> tuple[str, str]:
    """A thing and its group: mostly an object, sometimes a creature, and a made-up word if that is allowed."""
    x = rng.random()
    if x < 0.13:
        return rng.choice(w.CREATURES), "creature"
    if x < 0.19 and made_up:
        return w.pseudo_word(rng), "toy"
    thing = rng.choice(_THINGS)
    return thing, w.OBJECTS[thing]


_THINGS = list(w.OBJECTS)
_ELDERS = [("grandmother", "f"), ("mother", "f"), ("aunt", "f"), ("grandfather", "m"), ("father", "m"), ("uncle", "m")]


def draw_cast(rng: random.Random, made_up: bool = False) -> Cast:
    """A random cast whose hero-and-thing pair is not held out."""
    while True:
        gender, friend_gender = rng.choice("fm"), rng.choice("fm")
        kind = draw_kind(rng, gender, 0.65)
        friend_kind = draw_kind(rng, friend_gender, 0.5)
        hero = draw_name(rng, gender, kind)
        friend = draw_name(rng, friend_gender, friend_kind)
        thing, group = draw_thing(rng, made_up)
        if friend == hero or thing in (kind, friend_kind) or held_out("story", hero, thing):
            continue
        look = rng.choice(w.COLORS + w.LOOKS) if rng.random() < 0.75 and group not in ("food", "growing") else ""
        if look and look in thing:
            look = ""
        elder, elder_gender = rng.choice(_ELDERS)
        return Cast(hero, gender, kind, rng.choice(w.TRAITS), friend, friend_gender, friend_kind, thing, group, look,
                    rng.choice(w.PLACES), elder, elder_gender)


def tell(rng: random.Random, cast: Cast, plot: Callable[[Telling], None] | None = None) -> str:
    """A story about the cast in one paragraph of about 60 to 330 words; two episodes if the cast is `long`."""
    t = Telling(rng, cast)
    if not cast.long:
        (plot or rng.choice(plots_for(cast)))(t)
        return t.text()
    for t.episode, episode in enumerate(rng.sample(episodes_for(cast), 2)):
        episode(t)
    return t.text()


# --- requests -------------------------------------------------------------------------------------------------

ASK = "{{tell me|write|write me|make up|give me|please tell me|please write|i want|i would like|can you tell me|can you write|could you write|could you tell me|let me hear} a {story|{short|little|nice|new|bedtime|small|long|long} story|{tale|short tale|fairy tale}|{story for children|story for kids}}|a {story|short story|long story}|story}"
ABOUT = {
    "both": "{about [Hero] and [a_ask]|about [Hero] and [his] [ask]|about [Hero] with [a_ask]|about [a_kind] named [Hero] and [a_ask]|about [a_kind] called [Hero] and [a_ask]|in which [Hero] has [a_ask]|with [Hero] and [a_ask]|about [a_ask] and [a_kind] named [Hero]|about [a_ask] and [Hero]}",
    "creature": "{about [Hero] and [a_ask]|about [a_kind] named [Hero] and [a_ask]|about [Hero] who meets [a_ask]|in which [Hero] meets [a_ask]|with [Hero] and [a_ask]|about [a_ask] and [Hero]}",
    "hero": "{about [Hero]|about [a_kind] named [Hero]|about [a_trait_kind] named [Hero]|with [Hero]|about someone named [Hero]|about [a_kind] called [Hero]}",
    "thing": "{about [a_ask]|with [a_ask]|about [a_ask] and a friend|that has [a_ask] in it}",
    "kind": "{about [a_kind]|about [a_trait_kind]|with [a_kind]|about [a_kind] and [a_ask]|about [a_trait_kind] and [a_ask]}",
    "friends": "{about [Hero] and [Friend]|with [Hero] and [Friend]|about [Hero], [Friend] and [a_ask]|about [Hero] and [his] friend [Friend]}",
    "none": "{||for me|that is short|with a happy ending|that I can read at bedtime}",
}


def ask_for(rng: random.Random, cast: Cast, about: str) -> str:
    """A request for a story about the named parts of the cast, without its final punctuation."""
    slots = Telling(rng, cast).slots
    ask = slots["look"] if cast.look and rng.random() < 0.2 else cast.thing
    slots.update(ask=ask, a_ask=w.article(ask))
    topic = ABOUT["creature"] if about == "both" and cast.group == "creature" else ABOUT[about]
    return f"{expand(rng, ASK, slots)} {expand(rng, topic, slots)}".strip()


def free_story(rng: random.Random) -> str:
    """A story that nobody asked for; about one in twelve has two episodes."""
    cast = draw_cast(rng)
    cast.long = len(episodes_for(cast)) >= 2 and rng.random() < 0.08
    return tell(rng, cast)


def asked_story(rng: random.Random) -> tuple[str, str, Cast]:
    """A request, the story that honors it, and the cast."""
    about = rng.choices(("both", "hero", "thing", "kind", "friends", "none"), (48, 12, 12, 9, 10, 9))[0]
    while True:
        cast = draw_cast(rng, made_up=about in ("both", "thing"))
        if about in ("both", "hero", "friends") and rng.random() < 0.5 and cast.kind not in ("girl", "boy"):
            cast.kind = "girl" if cast.gender == "f" else "boy"
        plot = rng.choice(plots_for(cast))
        if about == "friends" and plot in (wish, honest, creature, found, cold_or_hungry):
            continue
        request = ask_for(rng, cast, about)
        cast.short = "short" in request and rng.random() < 0.5
        cast.long = "long " in request
        if cast.long and len(episodes_for(cast)) < 2:
            continue
        return request, tell(rng, cast, plot), cast
