"""Word lists of the story world and of the tasks, and made-up names and words."""

from __future__ import annotations

import random

BOYS = """Tom Ben Max Leo Sam Jack Noah Finn Oscar Theo Hugo Eli Adam Liam Owen Luke Ryan Milo Felix Jonas Emil Anton
Omar Ali Yusuf Karim Hassan Tariq Ravi Arjun Amit Rohan Kiran Vikram Kenji Hiro Taro Ken Wei Jun Ming Bao Minh Kofi
Kwame Jabari Tunde Sipho Diego Pablo Mateo Luis Carlos Rafael Marco Luca Nico Pedro Tiago Andre Ivan Pavel Boris Misha
Dima Lars Sven Erik Nils Anders Olaf Henrik Aaron Caleb Daniel David Ethan Frank George Harry Henry Ian Isaac Jacob
James Jason Joel John Joseph Joshua Julian Kevin Kyle Logan Martin Matthew Michael Nathan Nicholas Oliver Patrick Paul
Peter Philip Robert Robin Samuel Simon Stephen Thomas Toby Victor Walter William Zach Alfie Archie Bobby Charlie Danny
Dexter Edgar Freddie Gus Howard Jasper Kai Lenny Monty Ned Otis Percy Quentin Rufus Stanley Teddy Ulrich Vincent
Wesley Xavier Yannick Zeke Bruno Cyrus Dario Elias Fabian Gabriel Ibrahim Jamal Kasper Leon Malik Nabil Otto""".split()
GIRLS = """Mia Lily Anna Emma Ella Zoe Nora Ruby Lucy Chloe Grace Alice Clara Eva Ida Ivy Julia Lena Lola Maya Molly
Nina Olive Rosa Sara Sofia Tess Vera Willa Amina Fatima Leila Yasmin Zainab Noor Priya Asha Meera Anika Devi Lakshmi
Yuki Hana Sakura Aiko Mei Lin Xia Ling Linh Thuy Abena Ama Nia Zuri Thandi Carmen Elena Isabel Lucia Marta Paula Bianca
Chiara Giulia Ines Olga Irina Natasha Katya Dasha Ingrid Astrid Freya Greta Sigrid Heidi Abigail Amelia Audrey Beth
Bella Carla Cora Daisy Diana Edith Elise Eliza Erin Esther Fiona Flora Gemma Hannah Harriet Hazel Helen Holly Iris
Jane Jasmine Joan Josie Judy Kate Katie Laura Layla Leah Lydia Mabel Margo Martha Mary Matilda Megan Naomi Nell Olivia
Pearl Penny Petra Phoebe Polly Poppy Rachel Rebecca Rita Rose Sadie Sally Sarah Stella Susan Sylvie Tara Thea Tilly
Tina Uma Una Valerie Victoria Violet Wendy Winnie Yvonne Zara Ada Agnes Celia Dora Elsie Frida Gloria Hilda Imogen
Jenny Kira Luna Mina Nadia Opal Paige Quinn Ramona Selma Trudy Ursula Viola Wanda Xenia Yara Zelda""".split()
PETS = """Pip Biscuit Pepper Dot Button Patch Nutmeg Hopper Whiskers Bramble Clover Fern Moss Pebble Rusty Sunny Twig
Waffle Ziggy Bubbles Cocoa Dusty Fidget Ginger Honey Jelly Kiki Lulu Muffin Nibbles Olly Peanut Quill Rocky Scout Toffee
Velvet Willow Yoyo Acorn Bingo Comet Dash Ember Flip Gizmo Hazelnut Juniper Kipper Lemon Mango Noodle Oats Pickle Radish
Sparky Tinker Truffle Widget Zippy""".split()
SPECIES = """fox rabbit bear mouse hedgehog squirrel owl duck frog turtle cat dog puppy kitten pig lamb goat pony donkey
deer badger beaver otter mole hamster penguin seal elephant monkey lion tiger panda koala kangaroo giraffe zebra camel
crab snail bee ant beetle butterfly ladybug sparrow robin crow goose hen rooster parrot raccoon wolf lizard hippo
chipmunk raven swan""".split()
CREATURES = ["dragon", "dinosaur", "giant", "unicorn", "robot", "ghost", "monster", "wizard", "fairy", "whale", "dolphin",
             "bat", "troll", "elf", "pirate", "snowman", "wolf", "bear", "horse", "owl", "swan", "lion", "elephant",
             "dog", "cat", "fox", "rabbit", "turtle", "penguin", "seal", "goose", "pony", "parrot", "monkey", "tiger",
             "crab", "snail", "butterfly", "hedgehog", "panda"]
TRAITS = """brave kind curious clever shy gentle cheerful quiet patient careful proud stubborn playful honest lonely lively
thoughtful silly friendly polite hopeful dreamy busy sleepy bold generous loyal merry modest nimble""".split()
COLORS = """red blue green yellow orange purple pink white black brown silver golden gray striped spotted shiny""".split()
LOOKS = """little big old new tiny wooden small pretty round plain fancy bright""".split()

TOYS = """doll robot puppet spinning_top teddy_bear toy_train toy_car toy_boat puzzle marble yoyo toy_horse
toy_drum jigsaw toy_plane dollhouse rattle rocking_horse toy_ship toy_castle toy_truck"""
TREASURES = """ring necklace bracelet coin key shell feather stone button locket medal pebble crystal pearl brooch ribbon
star badge crown jewel fossil gem acorn compass magnet map letter diary notebook photograph stamp postcard pocket_watch
clock music_box jar bottle box chest treasure_box seashell pinecone"""
USEFUL = """basket bucket rope ladder spade shovel hammer brush broom net bag backpack umbrella pencil pen crayon paintbrush
book cup mug teapot spoon bowl plate mirror telescope camera magnifying_glass fishing_rod watering_can suitcase pillow
comb whisk wheelbarrow wagon cart satchel paddle tent hammock"""
LIGHTS = "lantern candle lamp flashlight torch night_light glow_worm_jar"
WARM = "scarf blanket coat hat cap sweater cloak shawl quilt jacket mitten sock slipper poncho"
FLYING = "kite balloon paper_plane toy_glider paper_bird pinwheel"
ROLLING = "ball hoop wheel rubber_ball beach_ball snow_globe"
FOOD = """cake pie apple pear peach cookie sandwich bun pancake muffin pumpkin carrot melon orange banana loaf_of_bread
honey_cake cupcake waffle pretzel plum coconut pineapple cheese pizza tart turnip potato"""
SOUND = "drum whistle flute bell trumpet guitar violin piano harp horn tambourine banjo harmonica"
RIDES = "bicycle sled scooter skateboard tricycle unicycle surfboard canoe"
GROWING = "seed flower rose tulip sunflower bean tomato_plant apple_tree pumpkin_seed strawberry_plant daisy lily"
FLOATING = "paper_boat toy_boat raft toy_duck cork little_boat toy_ship"

_GROUPS = {"toy": TOYS, "treasure": TREASURES, "useful": USEFUL, "light": LIGHTS, "warm": WARM, "flying": FLYING,
           "rolling": ROLLING, "food": FOOD, "sound": SOUND, "ride": RIDES, "growing": GROWING, "floating": FLOATING}
OBJECTS: dict[str, str] = {}
for _group, _nouns in _GROUPS.items():
    for _noun in _nouns.split():
        OBJECTS[_noun.replace("_", " ")] = _group
BREAKABLE = {"doll", "robot", "puppet", "toy train", "toy car", "toy boat", "toy horse", "toy plane", "dollhouse",
             "rocking horse", "toy truck", "toy castle", "clock", "music box", "kite", "umbrella", "wagon", "cart",
             "lantern", "lamp", "basket", "bicycle", "sled", "scooter", "drum", "guitar", "violin", "banjo", "toy ship",
             "wheelbarrow", "necklace", "bracelet", "chest", "pocket watch", "compass", "telescope", "camera",
             "fishing rod", "tent", "ladder", "pinwheel", "toy glider", "harp", "tricycle", "skateboard", "hammock"}
FRAGILE = {"cup", "mug", "teapot", "bowl", "plate", "jar", "bottle", "mirror", "lamp", "clock", "music box", "snow globe",
           "lantern", "pocket watch", "harp", "violin", "magnifying glass"}

PLACES = ["the park", "the garden", "the forest", "the beach", "the lake", "the river", "the meadow", "the market",
          "the village square", "the playground", "the farm", "the hill", "the orchard", "the harbor", "the old mill",
          "the schoolyard", "the pond", "the bridge", "the bakery", "the barn", "the field", "the castle", "the valley",
          "the station", "the zoo", "the library", "the shop", "the campsite", "the old well", "the waterfall"]
HOMES = ["a small village", "a quiet town", "a house by the sea", "a cottage near the forest", "a farmhouse on a hill",
         "a busy city", "a little house with a red door", "a town by the river", "a tall house on a narrow street",
         "a valley full of flowers", "a cabin in the mountains", "a village at the edge of a lake"]
ANIMAL_HOMES = ["a green forest", "a hole under an old oak", "a wide meadow", "a warm barn", "a quiet valley",
                "a garden behind a stone wall", "a hollow tree", "a snug den by the river", "a burrow on a sunny hill",
                "a wood full of tall pines"]
HIDING = ["under a bush", "behind a big rock", "in the tall grass", "under a bench", "beside the path", "behind a tree",
          "in a pile of leaves", "near the gate", "under the bridge", "next to the fence", "in an empty flower pot",
          "between two roots", "on a low branch", "behind the shed", "at the edge of the water", "under the stairs",
          "inside an old boot", "behind a barrel", "in a bird's nest", "on top of a hay bale"]
NUMBER_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
                "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"]

CAPITALS = {line.split(":")[0].strip(): line.split(":")[1].strip() for line in """
Afghanistan: Kabul; Albania: Tirana; Algeria: Algiers; Angola: Luanda; Argentina: Buenos Aires; Armenia: Yerevan;
Australia: Canberra; Austria: Vienna; Azerbaijan: Baku; Bahrain: Manama; Bangladesh: Dhaka; Belarus: Minsk;
Belgium: Brussels; Bhutan: Thimphu; Botswana: Gaborone; Brazil: Brasilia; Bulgaria: Sofia; Cambodia: Phnom Penh;
Cameroon: Yaounde; Canada: Ottawa; Chile: Santiago; China: Beijing; Colombia: Bogota; Costa Rica: San Jose;
Croatia: Zagreb; Cuba: Havana; Cyprus: Nicosia; Denmark: Copenhagen; Ecuador: Quito; Egypt: Cairo; Estonia: Tallinn;
Ethiopia: Addis Ababa; Fiji: Suva; Finland: Helsinki; France: Paris; Georgia: Tbilisi; Germany: Berlin; Ghana: Accra;
Greece: Athens; Guatemala: Guatemala City; Haiti: Port-au-Prince; Honduras: Tegucigalpa; Hungary: Budapest;
Iceland: Reykjavik; India: New Delhi; Indonesia: Jakarta; Iran: Tehran; Iraq: Baghdad; Ireland: Dublin; Italy: Rome;
Jamaica: Kingston; Japan: Tokyo; Jordan: Amman; Kazakhstan: Astana; Kenya: Nairobi; Kuwait: Kuwait City; Laos: Vientiane;
Latvia: Riga; Lebanon: Beirut; Libya: Tripoli; Lithuania: Vilnius; Luxembourg: Luxembourg City; Madagascar: Antananarivo;
Malaysia: Kuala Lumpur; Mali: Bamako; Malta: Valletta; Mexico: Mexico City; Moldova: Chisinau; Monaco: Monaco;
Mongolia: Ulaanbaatar; Montenegro: Podgorica; Morocco: Rabat; Mozambique: Maputo; Namibia: Windhoek; Nepal: Kathmandu;
New Zealand: Wellington; Nicaragua: Managua; Niger: Niamey; Nigeria: Abuja; Norway: Oslo; Oman: Muscat;
Pakistan: Islamabad; Panama: Panama City; Paraguay: Asuncion; Peru: Lima; Poland: Warsaw; Portugal: Lisbon; Qatar: Doha;
Romania: Bucharest; Russia: Moscow; Rwanda: Kigali; Saudi Arabia: Riyadh; Senegal: Dakar; Serbia: Belgrade;
Singapore: Singapore; Slovakia: Bratislava; Slovenia: Ljubljana; Somalia: Mogadishu; South Korea: Seoul; Spain: Madrid;
Sudan: Khartoum; Sweden: Stockholm; Switzerland: Bern; Syria: Damascus; Thailand: Bangkok; Tunisia: Tunis;
Turkey: Ankara; Uganda: Kampala; Ukraine: Kyiv; the United Kingdom: London; the United States: Washington, D.C.;
Uruguay: Montevideo; Uzbekistan: Tashkent; Venezuela: Caracas; Vietnam: Hanoi; Yemen: Sanaa; Zambia: Lusaka;
Zimbabwe: Harare""".replace("\n", " ").split(";")}

OPPOSITES = {}
for _pair in """hot cold|big small|tall short|fast slow|happy sad|day night|light dark|open closed|full empty|old young|
wet dry|hard soft|loud quiet|heavy weightless|rich poor|strong weak|clean dirty|early late|high low|left right|up down|
in out|on off|yes no|good bad|black white|first last|long brief|wide narrow|thick thin|deep shallow|smooth rough|
sweet sour|brave afraid|near far|above below|inside outside|front back|top bottom|start end|begin finish|push pull|
give take|win lose|buy sell|love hate|remember forget|true false|right wrong|easy difficult|cheap expensive|
sharp blunt|tight loose|asleep awake|alive dead|safe dangerous|friend enemy|summer winter|north south|east west|
arrive leave|ask answer|laugh cry|always never|everything nothing|before after|more less|same different|polite rude|
kind cruel|noisy silent|modern ancient|simple complex|visible hidden|hello goodbye|morning evening|
question reply|success failure|increase decrease|accept refuse|build destroy|float sink|freeze melt|rise fall|
wise foolish|generous selfish|calm nervous|lucky unlucky|public private|real fake""".replace("\n", "").split("|"):
    _a, _b = _pair.split()
    OPPOSITES.setdefault(_a, _b)
    OPPOSITES.setdefault(_b, _a)

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December"]
SEASONS = ["spring", "summer", "autumn", "winter"]

COMMON = """able about above across act add afraid after again age ago agree air all alone along already also always among
and anger animal another answer any appear apple area arm army around arrive art ask atom baby back bad bag bake balance
bank bar base basic bath battle beach bean beat beauty become bed before begin behind believe below bend best better big
bird bite bitter black blood blow blue board boat body bone born both bottom bowl brain branch bread break breath brick
bridge bright bring broad brother brown brush build burn bus busy butter buy cage calm camp cap car card care carry case
castle catch cause cave cent center chain chair chalk chance change charge cheap check cheese chest chicken chief child
choose circle city class clay clean clear climb clock close cloth cloud coal coast coat code cold collect color come
common compare complete condition control cook cool copper copy corn corner correct cost cotton cough count country couple
course court cover cow crack cream create cross crowd cruel cry cup current curtain curve cut cycle damage dance danger
dark data daughter dawn day dead deal dear debt decide deep degree depend desert design desk detail dig dinner direct dirt
discover dish distance divide doctor dollar door double doubt down draw dream dress drink drive drop dry dust duty each
eager ear early earth east easy eat edge effect egg eight either electric else empty end engine enjoy enough enter equal
error even evening event ever every exact example except excite exercise expect explain eye face fact fail fair fall false
family famous far farm fast father favor fear feather feed feel fence few field fight figure fill film final find fine
finger finish fire first fish fit five flame flat flight float floor flow flower fly fold follow food foot force forest
forget fork form forward four frame free fresh friend front fruit full fun funny future gain game garden gas gate gather
general gentle get gift girl give glad glass goal gold good grain grand grass gray great green ground group grow guess
guide gun hair half hall hammer hand happen hard harm hat hate have head heal hear heart heat heavy height help hen here
hide high hill history hit hold hole holiday home honest hope horse hospital hot hour house huge human hundred hunt hurry
ice idea image inch inside insect iron island jam jaw jelly jewel job join joke judge juice jump just keep kettle key kick
kind king kiss kitchen knee knife knock knot know lady lake lamp land language large last late laugh law lazy lead leaf
learn leather leave left leg lemon lesson letter level library lift light like limit line lion lip liquid list listen
little live lock long look loose lose loud love low luck lunch machine main make man many map mark market match material
matter meal measure meat medicine meet memory metal middle milk mind minute mirror mist mix model moment money monkey
month moon more morning mother motion mountain mouth move much muscle music nail name narrow nation nature near neck need
needle nerve nest net network never new news nice night nine noise normal north nose note nothing number nut ocean offer
office often oil old once one only open opinion orange order other our out oven over own owner page pain paint pair pale
paper parent park part party pass past paste path pay peace pen pencil people person phone picture piece pig pin pipe place
plan plane plant plate play please plenty plow pocket poem point poison polish poor porter position possible pot potato
powder power present press price print prison process produce profit proud prove public pull pump pupil purple purpose push
queen question quick quiet quite race rail rain raise range rate ray reach read ready real reason receive record red regret
regular relation remember repeat reply report rest result return reward rhythm rice rich ride right ring rise river road
rock roll roof room root rope rough round row royal rub rule run sad safe sail salt same sand save say scale school science
scissors scream sea season seat second secret see seed seem self sell send sense separate serious serve seven shade shake
shallow shame shape share sharp sheep shelf shine ship shirt shock shoe shop short shout show shut sick side sign silent
silk silver simple since sing single sister six size skin skirt sky sleep slip slow small smell smile smoke smooth snake
sneeze snow soap social society sock soft solid some son song soon sort sound soup south space spark speak special speed
spell spend spider spoon sport spot spring square stage stairs stamp stand star start state station stay steam steel steep
stem step stick sticky stiff still stitch stomach stone stop store storm story straight strange stream street stretch
strike string strong study style such sudden sugar summer sun support sure surface surprise sweet swim system table tail
take talk tall taste tax teach team tear ten tent test than thank that then theory there thick thief thin thing think third
this thought thread three throat through throw thumb thunder ticket tie tiger time tin tired toe together tomorrow tongue
tooth top touch tower town trade train travel tray tree trick trip trouble true trust try turn twelve twenty twist two
umbrella uncle under unit until use value vegetable very vessel view village violent voice vote wait walk wall want war
warm wash waste watch water wave wax way weak wear weather week weight well west wet wheel when where while whip whistle
white who whole why wide wife wild will win wind window wine wing winter wire wise wish with woman wonder wood wool word
work world worm worry wound write wrong yard year yellow yes yesterday young zebra zero zone""".split()

_ONSETS = "b br c ch cl d dr f fl g gl gr h j k kr l m n p pl qu r s sh sk sl sn st t th tr v w y z".split()
_VOWELS = "a e i o u ai ea ee oa oo ou".split()
_CODAS = ["", "", "", "b", "d", "g", "k", "l", "ll", "m", "n", "nd", "p", "r", "rn", "s", "ss", "st", "t", "x", "sh", "ck"]


def pseudo_word(rng: random.Random, syllables: int | None = None) -> str:
    """A pronounceable made-up word in lower case, of one to three syllables."""
    n = syllables or rng.choice((1, 2, 2, 3))
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + (rng.choice(_CODAS) if i == n - 1 or rng.random() < 0.3
                                                                  else "") for i in range(n))


def pseudo_name(rng: random.Random) -> str:
    """A made-up first name; it teaches the model to copy a name instead of knowing it by heart."""
    stem = rng.choice([*_ONSETS, "", "", ""]) + rng.choice("aeiou") + rng.choice(_CODAS[3:10])
    return (stem + rng.choice(["a", "o", "i", "in", "ia", "el", "us", "ette", "ik", "ora", "en", "y"])).capitalize()


def article(noun: str) -> str:
    """The noun with its indefinite article: "a kite", "an apple", "a unicorn"."""
    low = noun.lower()
    an = low.startswith(("honest", "hour")) or (
        low[0] in "aeiou" and not low.startswith(("uni", "use", "one")))
    return f"{'an' if an else 'a'} {noun}"
