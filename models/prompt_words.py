"""Words for the forms of `prompts.py`: alternatives between bars."""

THINGS = """a queue|a stack|a hash table|a database index|an operating system|a compiler|recursion|a binary search|
a web server|a cache|the internet|encryption|a password manager|machine learning|a neural network|a spreadsheet|
a battery|a transistor|a solar panel|a wind turbine|a microscope|a telescope|a thermometer|a compass|a barometer|
gravity|friction|magnetism|electricity|sound|light|heat|evaporation|condensation|photosynthesis|respiration|
digestion|the water cycle|the food chain|pollination|a volcano|an earthquake|a hurricane|a tornado|a glacier|
a desert|a rainforest|a coral reef|a river delta|the moon|the sun|a comet|an eclipse|a galaxy|a black hole|
the solar system|the seasons|the tides|the heart|the lungs|the brain|the skeleton|a muscle|a vitamin|a protein|
a vaccine|a virus|bacteria|sleep|exercise|a balanced diet|meditation|stress|a budget|inflation|interest|a loan|
insurance|a tax|a contract|a patent|democracy|a constitution|an election|a parliament|the Renaissance|
the Roman Empire|the Industrial Revolution|the printing press|the steam engine|the telephone|the bicycle|
the railway|an aeroplane|a submarine|a bridge|a skyscraper|concrete|glass|steel|paper|cotton|wool|chocolate|coffee|
tea|bread|cheese|honey|rice|an apple|a poem|a novel|a metaphor|a haiku|a symphony|a painting|a sculpture|
a photograph|a film|jazz|chess|football|tennis|swimming|running a marathon|gardening|recycling|composting|a garden|
a library|a museum|a school|a hospital|a post office|a market|a farm|a forest|an ocean|an island|a mountain|
friendship|honesty|courage|patience|teamwork|leadership|time management|public speaking|a job interview|a resume|
a meeting|a deadline|a newsletter|a startup|marketing|customer service|a refund|a warranty|an invoice|an API|
a variable|a loop|a function|a list|a dictionary|a class in programming|an algorithm|version control|a unit test|
a bug|a log file|a thread|a load balancer|a firewall|cloud computing|open source software|a robot|a drone|
an electric car|virtual reality|a search engine"""

ACTIVITIES = """learn a new language|save money|sleep better|stay focused while studying|prepare for an exam|
write a good email|plan a birthday party|plan a weekend trip|pack for a camping trip|clean a kitchen|cook pasta|
bake bread|make a cup of tea|make scrambled eggs|grow tomatoes|take care of a cat|train a puppy|wash a car|
fix a flat tyre|paint a wall|learn the guitar|read more books|write a short story|start a blog|run five kilometres|
drink more water|reduce plastic waste|use less electricity|organise a desk|remember names|give a presentation|
make new friends|apologise to a friend|welcome a new colleague|run a meeting|debug a program|name a variable|
back up a computer|choose a strong password|take better photographs|prepare for a job interview|negotiate a salary|
write a thank-you note|stay warm in winter|stay cool in summer|pack a suitcase|store vegetables|sharpen a pencil|
tie a tie|fold a shirt|make a paper plane|build a snowman|set the table|plant a tree|keep a diary|learn to swim"""

CAPITALS = """France:Paris|Italy:Rome|Spain:Madrid|Germany:Berlin|Portugal:Lisbon|Japan:Tokyo|China:Beijing|
Russia:Moscow|Egypt:Cairo|Greece:Athens|Norway:Oslo|Sweden:Stockholm|Finland:Helsinki|Denmark:Copenhagen|
Poland:Warsaw|Austria:Vienna|Hungary:Budapest|Ireland:Dublin|Canada:Ottawa|Mexico:Mexico City|Peru:Lima|
Chile:Santiago|Cuba:Havana|Kenya:Nairobi|India:New Delhi|Thailand:Bangkok|Turkey:Ankara|Iran:Tehran|
Australia:Canberra|the United Kingdom:London|the United States:Washington|South Korea:Seoul|Argentina:Buenos Aires"""

OPPOSITES = """hot:cold|big:small|up:down|fast:slow|light:dark|happy:sad|open:closed|full:empty|hard:soft|
early:late|old:young|rich:poor|strong:weak|tall:short|wet:dry|clean:dirty|loud:quiet|brave:cowardly|near:far|
high:low|begin:end|win:lose|buy:sell|push:pull|love:hate|true:false|right:left|first:last|always:never|
inside:outside"""

COLOURS = """grass|the sky|a banana|snow|coal|a ripe tomato|an orange|a lemon|blood|the sea|a carrot|chocolate|milk|
a sunflower|an elephant|a polar bear|a fire engine|a strawberry|an eggplant|a leaf in summer|a pea|salt|the night"""

FACTS = """How many days are there in a week?|How many months are there in a year?|
How many hours are there in a day?|How many legs does a spider have?|How many legs does a dog have?|
How many sides does a triangle have?|How many minutes are in an hour?|What do bees make?|What do cows eat?|
What is the freezing point of water in Celsius?|What is the boiling point of water in Celsius?|
Which planet is closest to the sun?|Which planet is known as the red planet?|What is the largest ocean?|
What is the largest animal on Earth?|Which animal is known as the king of the jungle?|What gas do plants take in?|
What gas do humans need to breathe?|What is H2O?|Who wrote Romeo and Juliet?|Who painted the Mona Lisa?|
Which language is spoken in Brazil?|Which currency is used in Japan?|What do you call a baby dog?|
What do you call a baby cat?|What is the first letter of the alphabet?|What season comes after winter?|
What day comes after Monday?|What month comes after March?|What is frozen water called?|
What is the tallest mountain in the world?|What is the longest river in the world?|
In which direction does the sun rise?|What is the opposite of north?|What do we use to see?|What do we use to hear?|
What do fish use to breathe?|What shape is a ball?|What is the main ingredient of bread?|
What is the main ingredient of an omelette?|What instrument has black and white keys?|What vehicle runs on rails?|
What do you use to cut paper?|What do you use to write on a blackboard?|Which metal is liquid at room temperature?|
What is the chemical symbol of gold?|What force keeps us on the ground?|
What star is at the centre of our solar system?|What is the hardest natural material?"""

WORDS = """apple|table|river|window|garden|pencil|winter|summer|mountain|kitchen|bottle|picture|market|forest|
bridge|castle|dragon|planet|silver|orange|purple|yellow|monkey|rabbit|tiger|horse|chicken|bread|butter|sugar|pepper|
coffee|letter|number|paper|school|teacher|student|doctor|farmer|driver|singer|artist|engine|rocket|camera|guitar|
piano|flower|island|desert|ocean|cloud|storm|thunder|candle|mirror|carpet|pillow|blanket|jacket|shoe|button|pocket|
wallet"""

COLLECTIONS = """fruits:apple, banana, cherry, mango, grape, pear, peach, plum, lemon, kiwi|
animals:dog, cat, horse, lion, tiger, rabbit, sheep, whale, eagle, snake|
colours:red, blue, green, yellow, purple, orange, black, white, brown, pink|
cities:Paris, London, Tokyo, Berlin, Madrid, Rome, Cairo, Oslo, Vienna, Dublin|
vegetables:carrot, potato, onion, spinach, broccoli, pea, bean, cabbage, leek, beet|
tools:hammer, saw, drill, wrench, pliers, chisel, screwdriver, ruler, level, file|
instruments:piano, guitar, violin, flute, drum, trumpet, cello, harp, clarinet, organ|
vehicles:car, bus, train, bicycle, boat, plane, truck, tram, scooter, ship"""

NAMES = "Anna|Ben|Clara|David|Emma|Felix|Grace|Henry|Isla|Jack|Kate|Leo|Maria|Noah|Olivia|Paul|Ruth|Sam|Tara|Victor"
JOBS = "teacher|nurse|baker|carpenter|gardener|engineer|librarian|pilot|musician|farmer|chef|journalist|painter|clerk"
PLACES = "Lisbon|Boston|Nairobi|Oslo|Toronto|Seville|Kyoto|Dublin|Lima|Bristol|Vienna|Denver|Porto|Ghent|Perth|Turin"
DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
GOODS = "headphones|kettle|backpack|lamp|keyboard|blender|jacket|tent|watch|chair|camera|phone case|rain boots|novel"
PRAISE = """arrived early and works perfectly|is even better than I hoped|feels solid and looks beautiful|
made my mornings so much easier|was worth every penny|is comfortable and easy to use|is the best one I have owned"""
BLAME = """broke after two days|arrived late and damaged|is far too loud|does not match the description|
stopped working within a week|feels cheap and smells bad|was a complete waste of money"""
PLAIN = """arrived on Tuesday in a brown box|comes in three sizes|has a cable of one metre|
is the same as the previous model|is sold in most shops|weighs about half a kilogram"""

REMARKS = """i dont know where he are going|she have two cat and a dog|me and him went to the shop yesterday|
we was late because of the trane|the informations is on the websight|he dont like no vegetables|
their going to there house tommorow|i has been working here since five year|can you borrow me a pen please|
the childs plays in the gardan|it dont matter what you thinks|this is more better then the last one"""

BLUNT = """Send me the report now.|You are late again.|I do not like this idea.|Your code is broken.|
Give me a discount.|Stop calling me.|This is wrong, do it again.|I cannot come to your party.|I want my money back.|
The food was bad.|Nobody understood your talk.|Answer my email.|We will not hire you.|Turn the music down.|
Move your car."""

FUNCTIONS = """adds two numbers|returns the larger of two numbers|reverses a string|counts the vowels in a string|
checks whether a number is even|computes the factorial of a number|sums a list of numbers|
finds the smallest number in a list|removes duplicates from a list|checks whether a word is a palindrome|
converts Celsius to Fahrenheit|returns the first n Fibonacci numbers|counts the words in a text|
sorts a list of names|reads a file and returns its lines|squares every number in a list|
joins a list of words with commas|checks whether a year is a leap year|returns the last element of a list|
merges two dictionaries|computes the average of a list|prints the numbers from 1 to 10"""
LANGUAGES = "Python|Python|Python|JavaScript|Java|C|Go|SQL|Bash"

SNIPPETS = (
    "def total(values):\n    result = 0\n    for value in values:\n        result += value\n    return result",
    "def greet(name):\n    return f'Hello, {name}!'",
    "for i in range(5):\n    print(i * i)",
    "numbers = [3, 1, 2]\nnumbers.sort()\nprint(numbers[0])",
    "def is_even(n):\n    return n % 2 == 0",
    "words = text.split()\nprint(len(words))",
    "function square(x) {\n  return x * x;\n}",
    "SELECT name FROM users WHERE age > 30 ORDER BY name;",
    "if temperature > 30:\n    print('hot')\nelse:\n    print('fine')",
    "with open('notes.txt') as file:\n    for line in file:\n        print(line.strip())",
    "int add(int a, int b) {\n    return a + b;\n}",
    "ages = {'Ann': 31, 'Bob': 25}\nfor name, age in ages.items():\n    print(name, age)",
)

SYSTEMS = (
    "You are a helpful assistant. Answer briefly.",
    "You are a friendly teacher who explains things to children.",
    "Answer in one sentence.",
    "You are a careful editor.",
    "You are a support agent of an online shop. Be polite.",
    "You answer with facts only.",
)
