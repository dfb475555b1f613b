"""Building blocks of the questions: facts, words, names and sentences, each line from the easy to the hard."""


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((left, right) for left, _, right in (pair.strip().partition(":") for pair in text.split("|")))


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split("|"))


CAPITALS = (
    _pairs(
        "France:Paris|Italy:Rome|Spain:Madrid|Germany:Berlin|Japan:Tokyo|Russia:Moscow|Egypt:Cairo|Greece:Athens|"
        "Ireland:Dublin|Cuba:Havana|China:Beijing|Austria:Vienna|Canada:Ottawa|England:London|Thailand:Bangkok"
    ),
    _pairs(
        "Portugal:Lisbon|Norway:Oslo|Sweden:Stockholm|Finland:Helsinki|Denmark:Copenhagen|Poland:Warsaw|"
        "Hungary:Budapest|Belgium:Brussels|Peru:Lima|Chile:Santiago|Kenya:Nairobi|Iran:Tehran|Iraq:Baghdad|"
        "Turkey:Ankara|Vietnam:Hanoi|Australia:Canberra|South Korea:Seoul|Argentina:Buenos Aires|Jamaica:Kingston"
    ),
    _pairs(
        "Bulgaria:Sofia|Romania:Bucharest|Croatia:Zagreb|Latvia:Riga|Estonia:Tallinn|Slovakia:Bratislava|"
        "Iceland:Reykjavik|Mongolia:Ulaanbaatar|Nepal:Kathmandu|Senegal:Dakar|Ghana:Accra|Uganda:Kampala|"
        "Zambia:Lusaka|Bolivia:Sucre|Ecuador:Quito|Uruguay:Montevideo|Paraguay:Asuncion|Laos:Vientiane|"
        "Malta:Valletta|Georgia:Tbilisi|Armenia:Yerevan|Angola:Luanda|Rwanda:Kigali|Fiji:Suva"
    ),
)
OPPOSITES = (
    _pairs(
        "hot:cold|big:small|up:down|fast:slow|happy:sad|open:closed|full:empty|hard:soft|early:late|rich:poor|"
        "strong:weak|wet:dry|clean:dirty|loud:quiet|near:far|high:low|young:old|day:night|left:right|true:false|"
        "long:short|black:white|buy:sell|push:pull|start:finish|win:lose|inside:outside|first:last|thick:thin"
    ),
    _pairs(
        "ancient:modern|expand:contract|generous:selfish|brave:cowardly|arrive:depart|victory:defeat|include:exclude|"
        "artificial:natural|temporary:permanent|minimum:maximum|increase:decrease|accept:reject|private:public|"
        "guilty:innocent|rough:smooth|shallow:deep|polite:rude|ascend:descend|internal:external|scarce:abundant|"
        "optimist:pessimist|horizontal:vertical|export:import|exhale:inhale|superior:inferior"
    ),
)
FACTS = (
    _pairs(
        "What colour is grass?:green|What colour is a ripe banana?:yellow|What colour is snow?:white|"
        "What colour is coal?:black|What colour is the sky on a clear day?:blue|What colour is blood?:red|"
        "What do bees make?:honey|What do cows give us to drink?:milk|What is frozen water called?:ice|"
        "What do you call a baby dog?:puppy|What do you call a baby cat?:kitten|What shape is a ball?:round|"
        "Which planet do we live on?:Earth|What do we see with?:eyes|What do we hear with?:ears|"
        "Which star is at the centre of our solar system?:Sun|What is the opposite of north?:south|"
        "Which month comes first in the year?:January|What is the last month of the year?:December|"
        "Which animal says meow?:cat|Which animal barks?:dog|What falls from the sky when it rains?:water"
    ),
    _pairs(
        "Which planet is known as the red planet?:Mars|What is the largest ocean on Earth?:Pacific|"
        "What is the largest animal on Earth?:whale|Which gas do plants take in from the air?:carbon dioxide|"
        "Which gas do humans need to breathe?:oxygen|Who wrote Romeo and Juliet?:Shakespeare|"
        "Who painted the Mona Lisa?:Leonardo|Which language is spoken in Brazil?:Portuguese|"
        "Which currency is used in Japan?:yen|What is the tallest mountain in the world?:Everest|"
        "What is the hardest natural material?:diamond|Which force keeps us on the ground?:gravity|"
        "What is the chemical formula of water?:H2O|Which planet is closest to the sun?:Mercury|"
        "Which planet has the best known rings?:Saturn|Which metal is liquid at room temperature?:mercury|"
        "Which bird cannot fly and lives in Antarctica?:penguin|Which organ pumps blood?:heart|"
        "On which continent is Egypt?:Africa|On which continent is Brazil?:South America|"
        "Which instrument has black and white keys?:piano|What is the largest planet?:Jupiter"
    ),
    _pairs(
        "What is the chemical symbol of sodium?:Na|What is the chemical symbol of gold?:Au|"
        "What is the chemical symbol of iron?:Fe|What is the chemical symbol of potassium?:K|"
        "Who discovered penicillin?:Fleming|Who developed the theory of general relativity?:Einstein|"
        "Who wrote War and Peace?:Tolstoy|Who wrote Don Quixote?:Cervantes|Who painted Guernica?:Picasso|"
        "Who composed the Four Seasons?:Vivaldi|Who composed the opera The Magic Flute?:Mozart|"
        "In which year did the Second World War end?:1945|In which year did the Berlin Wall fall?:1989|"
        "In which year did people first walk on the moon?:1969|In which year did the French Revolution begin?:1789|"
        "Which element has the atomic number 6?:carbon|Which element has the atomic number 2?:helium|"
        "What is the smallest prime number?:2|What is the currency of Poland?:zloty|"
        "What is the currency of India?:rupee|"
        "Which enzyme in saliva breaks down starch?:amylase|What is the longest bone of the human body?:femur|"
        "Which layer of the atmosphere holds most of the ozone?:stratosphere|Who invented the telephone?:Bell|"
        "Who was the first president of the United States?:Washington|Which river flows through Baghdad?:Tigris"
    ),
)
PLURALS = (
    _pairs(
        "cat:cats|dog:dogs|book:books|tree:trees|house:houses|apple:apples|car:cars|table:tables|bird:birds|pen:pens"
    ),
    _pairs(
        "box:boxes|city:cities|baby:babies|church:churches|leaf:leaves|knife:knives|wolf:wolves|tomato:tomatoes|"
        "potato:potatoes|bus:buses|story:stories|wish:wishes|glass:glasses"
    ),
    _pairs(
        "child:children|mouse:mice|foot:feet|tooth:teeth|goose:geese|man:men|woman:women|ox:oxen|sheep:sheep|"
        "crisis:crises|criterion:criteria|cactus:cacti|analysis:analyses"
    ),
)
PAST = (
    _pairs(
        "walk:walked|play:played|jump:jumped|look:looked|open:opened|clean:cleaned|call:called|help:helped|ask:asked"
    ),
    _pairs("go:went|see:saw|eat:ate|run:ran|take:took|give:gave|come:came|buy:bought|make:made|write:wrote|find:found"),
    _pairs(
        "teach:taught|seek:sought|swear:swore|weave:wove|forbid:forbade|strive:strove|bind:bound|flee:fled|freeze:froze"
    ),
)
PROVERBS = _pairs(
    "An apple a day keeps the doctor:away|Better late than:never|Actions speak louder than:words|"
    "Practice makes:perfect|Two heads are better than:one|The early bird catches the:worm|"
    "Do not judge a book by its:cover|A picture is worth a thousand:words|When in Rome, do as the Romans:do|"
    "Every cloud has a silver:lining|Birds of a feather flock:together|The pen is mightier than the:sword|"
    "Honesty is the best:policy|Time is:money|Knowledge is:power|Where there is smoke, there is:fire|"
    "Rome was not built in a:day|Out of sight, out of:mind|A penny saved is a penny:earned|Look before you:leap"
)
GROUPS = {
    "fruit": _list("apple|banana|cherry|mango|grape|pear|peach|plum|lemon|kiwi"),
    "animal": _list("dog|cat|horse|lion|tiger|rabbit|sheep|eagle|snake|goat"),
    "colour": _list("red|blue|green|yellow|purple|orange|black|white|brown|pink"),
    "city": _list("Paris|London|Tokyo|Berlin|Madrid|Rome|Cairo|Oslo|Vienna|Dublin"),
    "tool": _list("hammer|saw|drill|wrench|pliers|chisel|screwdriver|axe|shovel|rake"),
    "vehicle": _list("car|bus|train|bicycle|boat|plane|truck|tram|scooter|ship"),
}
WORDS = (
    _list("cat|sun|dog|map|red|box|cup|hat|pen|bed|bus|car|key|egg|ice|toy|leg|arm"),
    _list("table|river|bread|chair|green|house|light|music|paper|stone|water|world|plant|cloud|train|lemon"),
    _list("window|garden|bridge|market|pencil|orange|winter|castle|planet|silver|doctor|flower|island|rabbit"),
    _list("mountain|elephant|calendar|keyboard|umbrella|hospital|computer|dinosaur|notebook|sandwich|birthday"),
)
SENTENCES = (
    _list("The cat sat down|Birds sing at dawn|We like warm bread|Rain fell all night|Open the red door|He ran home"),
    _list(
        "The old man walked slowly to the market|My sister keeps three white rabbits in the garden|"
        "A small boat crossed the river before noon|The teacher wrote the date on the board|"
        "Fresh bread smells best early in the morning|Nobody heard the phone ring in the kitchen|"
        "The children built a castle out of wet sand|Our train leaves from platform four at six"
    ),
    _list(
        "Although the storm had passed, the fishermen waited another hour before they untied their boats and left|"
        "The museum on the hill, closed since the war, will open its doors again on the first Sunday in May|"
        "When the bell rang twice, every clerk in the long grey office put down a pen and looked at the clock|"
        "She packed two coats, a map of the valley, half a loaf of bread and the letter that nobody had answered|"
        "The engineer measured the bridge three times, because the figures in the old plan could not be right"
    ),
)
NAMES = _list(
    "Anna|Ben|Clara|David|Emma|Felix|Grace|Henry|Isla|Jack|Kate|Leo|Maria|Noah|Olivia|Paul|Ruth|Sam|Tara|Victor"
)
JOBS = _list("teacher|nurse|baker|carpenter|gardener|engineer|librarian|pilot|musician|farmer|chef|journalist|painter")
PLACES = _list("Lisbon|Boston|Nairobi|Oslo|Toronto|Seville|Kyoto|Dublin|Lima|Bristol|Vienna|Denver|Porto|Ghent|Perth")
PETS = _list("a grey cat|a brown dog|a parrot|two rabbits|a turtle|a goldfish|a hamster|an old horse")
DAYS = _list("Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday")
MONTHS = _list("January|February|March|April|May|June|July|August|September|October|November|December")
GOODS = _list(
    "headphones|kettle|backpack|lamp|keyboard|blender|jacket|tent|watch|chair|camera|phone case|novel|bicycle"
)
THINGS = _list("apples|marbles|stamps|books|pencils|cookies|coins|shells|balloons|stickers|cards|oranges|eggs|tickets")
PRAISE = _list(
    "arrived early and works perfectly|is even better than I hoped|feels solid and looks beautiful|"
    "made my mornings so much easier|was worth every penny|is comfortable and easy to use|is the best I have owned"
)
BLAME = _list(
    "broke after two days|arrived late and damaged|is far too loud and ugly|does not match the description at all|"
    "stopped working within a week|feels cheap and smells bad|was a complete waste of money"
)
SUBTLE_PRAISE = _list(
    "is not bad at all, whatever my neighbour says|looked awful in the pictures, yet I would not swap it for any other|"
    "made me eat my words after I had laughed at the price|does nothing that I could complain about"
)
SUBTLE_BLAME = _list(
    "would be wonderful if only it did what it should|is a great way to learn patience with customer service|"
    "looked so good in the pictures that I kept it for a whole day|has one use: it keeps the door from closing"
)
