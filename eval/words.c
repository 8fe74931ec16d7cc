/* See words.h. The lists are those of models/train/words.json, in the same order; tests/unit/eval compares them. */
#include "eval/words.h"

static const char *const first_words[] = {
    "Adam",  "Agnes", "Albert", "Amelia", "Anton", "Beata", "Boris",  "Carla", "Clara", "Daniel",
    "David", "Dora",  "Edith",  "Elena",  "Emil",  "Erik",  "Felix",  "Frida", "Georg", "Greta",
    "Hanna", "Hugo",  "Ida",    "Ivan",   "Jonas", "Julia", "Karin",  "Lara",  "Leo",   "Lukas",
    "Maria", "Marta", "Milan",  "Nadia",  "Nils",  "Nora",  "Olga",   "Oscar", "Paula", "Peter",
    "Rosa",  "Simon", "Sofia",  "Stefan", "Tomas", "Vera",  "Viktor", "Wanda"};

static const char *const last_words[] = {
    "Abel",   "Bauer",  "Becker", "Berg",    "Blanc",    "Bruno",  "Cole",   "Conti",  "Costa",  "Dahl",
    "Duarte", "Engel",  "Farkas", "Fischer", "Fontaine", "Garcia", "Gruber", "Hansen", "Horvat", "Ito",
    "Jensen", "Keller", "Klein",  "Kovac",   "Krause",   "Lang",   "Larsen", "Lopez",  "Marino", "Mendes",
    "Meyer",  "Moreau", "Nagy",   "Novak",   "Olsen",    "Petrov", "Quinn",  "Reyes",  "Ricci",  "Rossi",
    "Santos", "Sato",   "Silva",  "Tanaka",  "Varga",    "Vogel",  "Weber",  "Wolf"};

static const char *const city_words[] = {
    "Athens", "Austin",  "Bergen", "Berlin",  "Bogota", "Boston", "Bremen", "Cairo",    "Chennai",  "Dakar",
    "Delhi",  "Denver",  "Dublin", "Geneva",  "Genoa",  "Hanoi",  "Havana", "Helsinki", "Kyoto",    "Lagos",
    "Lima",   "Lisbon",  "London", "Lyon",    "Madrid", "Malaga", "Manila", "Milano",   "Montreal", "Mumbai",
    "Munich", "Nairobi", "Naples", "Oslo",    "Osaka",  "Paris",  "Porto",  "Prague",   "Quito",    "Riga",
    "Rome",   "Seoul",   "Sofia",  "Tallinn", "Tokyo",  "Tunis",  "Turin",  "Vienna"};

static const char *const colour_words[] = {"red",     "green", "blue",      "yellow", "orange", "purple",
                                           "pink",    "brown", "black",     "white",  "grey",   "violet",
                                           "scarlet", "beige", "turquoise", "crimson"};

static const char *const job_words[] = {"baker",   "painter",  "teacher",   "doctor",  "farmer", "pilot",
                                        "sailor",  "tailor",   "lawyer",    "judge",   "nurse",  "dentist",
                                        "butcher", "gardener", "carpenter", "plumber", "singer", "dancer",
                                        "waiter",  "miner",    "printer",   "writer",  "barber", "chemist"};

static const char *const animal_words[] = {"dog",    "cat",      "horse",  "goat",   "rabbit",   "parrot",
                                           "turtle", "hamster",  "donkey", "sheep",  "duck",     "goose",
                                           "snake",  "lizard",   "pony",   "canary", "hedgehog", "ferret",
                                           "pigeon", "tortoise", "frog",   "mouse",  "llama",    "peacock"};

static const char *const quality_words[] = {
    "wooden",  "silver",  "golden",   "copper", "broken", "heavy",   "narrow", "round",
    "square",  "tiny",    "tall",     "rusty",  "shiny",  "striped", "folded", "hollow",
    "curved",  "painted", "polished", "velvet", "marble", "paper",   "glass",  "iron",
    "leather", "woollen", "plastic",  "stone",  "amber",  "ivory",   "bronze", "crystal"};

static const char *const thing_words[] = {
    "lamp",   "chair",  "table",  "door",   "clock",  "mirror", "bottle", "basket",
    "ladder", "hammer", "kettle", "violin", "drum",   "candle", "carpet", "cabinet",
    "drawer", "barrel", "bucket", "wagon",  "bridge", "tower",  "gate",   "box",
    "ring",   "crown",  "sword",  "shield", "coin",   "statue", "vase",   "globe"};

static const char *const variable_words[] = {"alpha", "beta",    "gamma",   "delta", "epsilon", "zeta",
                                             "eta",   "theta",   "iota",    "kappa", "lambda",  "mu",
                                             "nu",    "xi",      "omicron", "pi",    "rho",     "sigma",
                                             "tau",   "upsilon", "phi",     "chi",   "psi",     "omega"};

static const char *const mood_words[] = {"old",  "young",    "quiet",  "happy",   "tired",  "clever",
                                         "lazy", "friendly", "hungry", "curious", "gentle", "proud"};

static const char *const verb_words[] = {"sings", "waits",  "sleeps", "works", "rests",  "walks",
                                         "sits",  "dreams", "smiles", "reads", "stands", "talks"};

static const char *const place_words[] = {"river",  "market",  "station", "harbour", "church", "forest",
                                          "garden", "library", "museum",  "castle",  "school", "beach",
                                          "mill",   "lake",    "square",  "field"};

static const char *const time_words[] = {"morning", "evening", "afternoon", "summer",
                                         "winter",  "spring",  "autumn",    "night"};

#define ROW(name)                                                                                            \
    {                                                                                                        \
#name, name##_words, (int32_t)SL_COUNT(name##_words)                                                 \
    }

const sl_eval_words sl_eval_word_lists[SL_EVAL_WORD_LISTS] = {
    [SL_EVAL_FIRST] = ROW(first),     [SL_EVAL_LAST] = ROW(last),   [SL_EVAL_CITY] = ROW(city),
    [SL_EVAL_COLOUR] = ROW(colour),   [SL_EVAL_JOB] = ROW(job),     [SL_EVAL_ANIMAL] = ROW(animal),
    [SL_EVAL_QUALITY] = ROW(quality), [SL_EVAL_THING] = ROW(thing), [SL_EVAL_VARIABLE] = ROW(variable),
    [SL_EVAL_MOOD] = ROW(mood),       [SL_EVAL_VERB] = ROW(verb),   [SL_EVAL_PLACE] = ROW(place),
    [SL_EVAL_TIME] = ROW(time),
};
