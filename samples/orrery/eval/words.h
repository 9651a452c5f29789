// The words of eval's texts. The demo model's corpus (samples/models/training/corpus.py) has the same words, so the
// model knows every word.
#pragma once

#include <vector>

namespace orrery::tool::words {

using Pool = std::vector<const char*>;

inline const Pool kNames = {
    "Ada",    "Alan",  "Amara",  "Anders", "Anya",  "Ariel",  "Asha",   "Axel",  "Basil",  "Beatrix", "Bruno",  "Callum", "Carmen",
    "Celia",  "Cyrus", "Dahlia", "Dario",  "Della", "Dmitri", "Edith",  "Elio",  "Elsa",   "Emil",    "Esme",   "Ezra",   "Fatima",
    "Felix",  "Fiona", "Flora",  "Gideon", "Greta", "Hana",   "Hector", "Hugo",  "Ida",    "Ines",    "Ingrid", "Isaac",  "Ivan",
    "Jasper", "Joan",  "Jonas",  "Juno",   "Kai",   "Kamal",  "Karim",  "Kira",  "Lars",   "Layla",   "Leon",   "Lena",   "Lidia",
    "Linus",  "Lucia", "Magnus", "Mara",   "Marco", "Marina", "Mateo",  "Mira",  "Nadia",  "Naomi",   "Nico",   "Nils",   "Nora",
    "Odin",   "Olga",  "Omar",   "Orla",   "Oscar", "Otto",   "Paloma", "Petra", "Priya",  "Quinn",   "Rafael", "Ravi",   "Rhea",
    "Rosa",   "Ruben", "Sadie",  "Samir",  "Selma", "Silas",  "Sofia",  "Soren", "Stella", "Tariq",   "Tessa",  "Theo",   "Thora",
    "Tobias", "Uma",   "Vera",   "Viktor", "Wanda", "Willa",  "Xavier", "Yara",  "Yusuf",  "Zara",    "Zelda",  "Zoran"};

inline const Pool kCities = {
    "Aarhus", "Accra",  "Athens", "Baku",    "Bergen",  "Bern",    "Bilbao", "Boston", "Bremen",  "Cairo", "Calgary", "Cusco",  "Dakar",
    "Delhi",  "Denver", "Dublin", "Durban",  "Esbjerg", "Fez",     "Galway", "Geneva", "Genoa",   "Ghent", "Hanoi",   "Havana", "Izmir",
    "Jaipur", "Kigali", "Kobe",   "Kyoto",   "Lagos",   "Leeds",   "Lima",   "Lisbon", "Lusaka",  "Lyon",  "Madrid",  "Malmo",  "Manila",
    "Milan",  "Minsk",  "Mumbai", "Nairobi", "Naples",  "Nice",    "Osaka",  "Oslo",   "Paris",   "Perth", "Porto",   "Prague", "Quito",
    "Riga",   "Rome",   "Salem",  "Seoul",   "Sofia",   "Split",   "Sydney", "Taipei", "Tallinn", "Tampa", "Tbilisi", "Tokyo",  "Toledo",
    "Tromso", "Tunis",  "Turin",  "Utrecht", "Vienna",  "Vilnius", "Warsaw", "York",   "Zagreb",  "Zurich"};

inline const Pool kObjects = {"compass", "lantern",  "ledger",  "violin",  "telescope", "teapot", "hammer",  "sextant", "candle", "anchor",
                              "basket",  "bottle",   "brush",   "bucket",  "camera",    "chisel", "clock",   "coin",    "crown",  "cup",
                              "drum",    "fan",      "feather", "flag",    "flute",     "globe",  "harp",    "helmet",  "jar",    "kettle",
                              "key",     "kite",     "knife",   "ladder",  "lamp",      "lens",   "locket",  "map",     "mask",   "mirror",
                              "needle",  "notebook", "oar",     "pearl",   "pen",       "pipe",   "pitcher", "plate",   "quilt",  "radio",
                              "ring",    "rope",     "saddle",  "scarf",   "scroll",    "shield", "spoon",   "stamp",   "statue", "sword",
                              "thimble", "ticket",   "torch",   "trumpet", "umbrella",  "vase",   "wallet",  "whistle", "wrench"};

inline const Pool kPlaces = {"attic",      "barn",      "bakery",     "boathouse", "cabin",       "castle",    "cellar",     "chapel",
                             "clinic",     "corridor",  "courtyard",  "dock",      "factory",     "farmhouse", "forge",      "garage",
                             "garden",     "gallery",   "greenhouse", "harbor",    "hotel",       "kitchen",   "laboratory", "library",
                             "lighthouse", "market",    "mill",       "museum",    "observatory", "office",    "orchard",    "palace",
                             "pantry",     "parlor",    "pier",       "quarry",    "school",      "shed",      "stable",     "station",
                             "studio",     "tavern",    "temple",     "tent",      "theater",     "tower",     "tunnel",     "vault",
                             "vineyard",   "warehouse", "windmill",   "workshop"};

inline const Pool kColors = {"red",    "blue",   "green", "yellow", "white", "black",   "purple", "orange",
                             "silver", "golden", "brown", "gray",   "pink",  "crimson", "teal",   "ivory"};

inline const Pool kJobs = {"baker",   "pilot",   "doctor",  "farmer",   "painter",  "teacher",   "sailor",    "tailor",  "writer", "judge",
                           "miner",   "nurse",   "chemist", "singer",   "weaver",   "builder",   "dancer",    "lawyer",  "potter", "ranger",
                           "plumber", "printer", "surgeon", "gardener", "botanist", "librarian", "carpenter", "musician"};

inline const Pool kAnimals = {"fox",  "owl",  "bear",  "hare",  "wolf", "crow", "heron", "otter", "badger", "lynx",
                              "deer", "goat", "horse", "raven", "seal", "swan", "toad",  "crane", "mole",   "finch"};

inline const Pool kVerbs = {"carried", "found",   "painted", "sold",    "repaired", "borrowed", "hid", "cleaned",
                            "moved",   "studied", "dropped", "counted", "measured", "opened",   "lost"};

inline const Pool kAdverbs = {"slowly",    "quietly", "early",  "late",  "again",    "often",
                              "carefully", "quickly", "gladly", "alone", "together", "twice"};

inline const Pool kWeather = {"rain", "snow", "wind", "fog", "sunshine", "thunder", "frost", "hail", "mist", "drizzle"};

inline const Pool kDays = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};

inline const Pool kMonths = {"January", "February", "March",     "April",   "May",      "June",
                             "July",    "August",   "September", "October", "November", "December"};

inline const Pool kKeywords = {"amber",    "basalt",  "cedar",  "cobalt",  "comet",   "coral",   "cosmos",  "delta",  "ember",   "falcon",
                               "fjord",    "galaxy",  "garnet", "glacier", "granite", "harvest", "horizon", "indigo", "island",  "jasmine",
                               "jungle",   "juniper", "lagoon", "lotus",   "lunar",   "maple",   "marble",  "meadow", "meteor",  "mosaic",
                               "nebula",   "nectar",  "nickel", "onyx",    "opal",    "orchid",  "panther", "pebble", "phoenix", "pine",
                               "plasma",   "prairie", "prism",  "pulsar",  "quartz",  "quasar",  "raptor",  "reef",   "ruby",    "saffron",
                               "sapphire", "savanna", "sierra", "solar",   "spruce",  "summit",  "sunset",  "tango",  "thistle", "thunder",
                               "tiger",    "topaz",   "tundra", "tulip",   "velvet",  "violet",  "walnut",  "willow", "zephyr",  "zircon"};

}  // namespace orrery::tool::words
