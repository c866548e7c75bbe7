"""Detect the language of a text by its letters and its most frequent words.

Each word of a sample is looked up in lists of words that are frequent in one language. This needs no model in memory
and costs about 0.1 ms for a document (decision 17). Only a clear result counts; otherwise the language is unknown.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping

WORDS = "words"
ENOUGH = 300
"""Words of the sample. The rest of the document is not read."""
_LEAST_HITS = 4
_LEAST_SHARE = 0.12
_LEAST_LEAD = 1.3
"""How many times more frequent the words of the language must be than those of the next one."""
_LEAST_LETTERS = 12

_FREQUENT = {
    "en": "the of and to in is that it for was on are as with be by at this from have or had not but which you were "
    "they their has been can will its",
    "de": "der die und das ist den von zu mit sich des auf für nicht ein eine dem im als auch es an werden aus er hat "
    "dass sie nach wird bei einer um wie wurde",
    "fr": "le la les et des est une dans que qui pour du au pas sur il ne par plus avec ce sont ses cette aux mais ou "
    "été nous vous ont elle être l d n qu",
    "es": "el la los las de que y en un una por con para es del se al lo como más su sus pero fue este ha son está "
    "entre cuando muy también desde",
    "pt": "o os a as de que e do da em um uma para com não no na por mais dos das se foi ao ele são como mas seu sua "
    "ou também é à pelo pela",
    "it": "il la di che e è un una per non sono con del della dei delle si nel le gli più da al anche come alla lo ha "
    "questo era dal nella i",
    "nl": "de het een en van is dat op te zijn voor met niet aan er om ook als bij maar door werd naar deze uit nog "
    "dan wordt heeft over hij",
    "sv": "och att det som en på är av för med den till inte har ett om var jag men så de från vi kan nu eller hade "
    "när efter blev mycket",
    "da": "og at det er en af på til for med den ikke der har et som jeg de var han men vi kan blev efter efter mere "
    "eller hun fra over noget",
    "no": "og å det er som en av på til for med den ikke har et jeg de var han men vi kan ble etter mer eller hun fra "
    "seg mye hva",
    "fi": "ja on ei että se oli hän mutta kun tai myös ovat joka niin kuin sen ole jos sekä mukaan vain nyt hänen "
    "olla mitä jo vielä kanssa",
    "pl": "i w nie na z się do to że jest o jak za po od przez był dla ale jego oraz są co tym już przy jej może tylko "
    "które która który",
    "cs": "a v se na je že z s do to i o jako ve k by pro za jeho ale byl po od jsou není který která které také jsem "
    "než tak při",
    "sk": "a v sa na je že z s do to i o ako vo k by pre za jeho ale bol po od sú nie ktorý ktorá ktoré aj som než tak "
    "pri alebo",
    "hu": "a az és hogy nem is egy van volt ez meg csak mint már még de ha ki el azt vagy után lehet mert minden kell "
    "ezt lett által",
    "ro": "și de în la cu nu o un pe că din este care mai pentru sunt a fost au se al ale sau ca să fi prin dar după "
    "dintre ea el",
    "tr": "ve bir bu da de için ile olarak daha çok olan gibi en sonra kadar ne var olduğu değil ancak ise her ya veya "
    "göre tarafından",
    "id": "yang dan di dari untuk dengan pada adalah ini itu dalam tidak akan juga oleh ke sebagai atau dapat telah "
    "ada karena lebih mereka",
    "vi": "và của là có được trong một cho các không với những này đã người khi từ đến để như về ra cũng vào tại nhiều "
    "năm",
    "hr": "i u je da se na za su od kao iz s koji koja koje što ne ili bi o biti po sam nije te ali nakon sve može "
    "bio bila",
    "sl": "in je v na se da za so z s ki od pri pa kot iz tudi ne po bil bila ali ter še lahko biti ga ni bo sta",
    "ca": "de la que i el en a les els un una per amb del és no al va com dels més ha són també o seva entre aquest "
    "aquesta",
    "et": "ja on ei et ta see oli ka mis kui aga oma või välja siis olid nii kes ning pole tema seda veel sest üks "
    "aasta",
    "lt": "ir yra į kad su tai iš buvo ne kaip bet jo už apie po tik nuo ar jau dar prie būti kai labai taip metų",
    "lv": "un ir no ar uz par ka kas tas bija viņš ne arī pēc vai bet to gan līdz tika tā kā pie lai gada",
    "ru": "и в не на что с он как по это из но его к за от был то же она так все для было у мы бы о или они при также",
    "uk": "і в не на що з та як до це за від його у є для але він було був про із або також які її при після",
    "bg": "и на да се от в за е не са с че като по а при през може към един това или беше той но които ще след",
    "sr": "и у је да се на за су од као из са који која које што не или би о бити по није али након све може",
    "fa": "و در به از که این را با است برای آن یک بر های خود تا می شود شد هم اما یا کرد",
    "ar": "في من على إلى أن التي هذا عن مع هذه كان الذي ما لا أو ذلك بين كما قد كانت",
    "ur": "کے کی میں ہے اور سے کا کو نے پر یہ ہیں کہ اس کر تھا ایک بھی گیا لیے",
    "hi": "के में है की और से का को हैं यह ने पर कि एक इस भी नहीं था लिए हो",
    "mr": "आणि आहे या व हे ते च्या मध्ये होते त्या एक असे करण्यात आहेत झाला",
    "ne": "र छ को मा यो छन् भने गर्न लागि पनि एक हो थियो गरेको तथा",
}  # fmt: skip
_LANGUAGES: dict[str, tuple[str, ...]] = {}
for _code, _words in _FREQUENT.items():
    for _word in set(_words.split()):
        _LANGUAGES[_word] = (*_LANGUAGES.get(_word, ()), _code)

_SCRIPTS = {
    "GREEK": "el", "HEBREW": "he", "THAI": "th", "HANGUL": "ko", "BENGALI": "bn", "TAMIL": "ta", "TELUGU": "te",
    "GEORGIAN": "ka", "ARMENIAN": "hy", "GUJARATI": "gu", "KANNADA": "kn", "MALAYALAM": "ml", "GURMUKHI": "pa",
    "KHMER": "km", "LAO": "lo", "MYANMAR": "my", "SINHALA": "si", "ETHIOPIC": "am", "TIBETAN": "bo",
    "HIRAGANA": "ja", "KATAKANA": "ja", "CJK": "zh",
}  # fmt: skip
"""Scripts that mostly one language uses."""
_WORD = re.compile(r"[^\W\d_]+(?:[\u0300-\u036f\u0900-\u0dff\u0e00-\u0eff]+[^\W\d_]*)*")
_LONGEST = 40

Tally = Mapping[str, int]


def add(tally: Tally, text: str) -> dict[str, int]:
    """The counts of a sample with the words of another text. `words` is the number of all words; a key in upper case
    counts the letters of a script. The text is ignored if the sample has enough words already."""
    counts = Counter(tally)
    for match in _WORD.finditer(text):
        if counts[WORDS] >= ENOUGH:
            break
        word = match[0]
        if word[0] > "\u036f" and _script(word[0]) in _SCRIPTS:
            counts.update(script for letter in word[:_LONGEST] if (script := _script(letter)) in _SCRIPTS)
            # Some scripts do not separate words.
            counts[WORDS] += 1 + min(len(word), _LONGEST) // 8
            continue
        counts[WORDS] += 1
        counts["LETTERS"] += min(len(word), _LONGEST)
        for code in _LANGUAGES.get(word.lower(), ()):
            counts[code] += 1
    return dict(counts)


def is_enough(tally: Tally) -> bool:
    return tally.get(WORDS, 0) >= ENOUGH


def language(tally: Tally) -> str | None:
    """The language of a sample; None if it is not clear."""
    letters = {key: count for key, count in tally.items() if key.isupper()}
    scripts = {key: count for key, count in letters.items() if key != "LETTERS"}
    if scripts and (best := _of_script(scripts, letters)) is not None:
        return best
    codes = sorted(((count, code) for code, count in tally.items() if code in _FREQUENT), reverse=True)
    if not codes:
        return None
    most, code = codes[0]
    second = codes[1][0] if len(codes) > 1 else 0
    if most < _LEAST_HITS or most < _LEAST_SHARE * tally[WORDS] or most < _LEAST_LEAD * second:
        return None
    return code


def _of_script(scripts: Mapping[str, int], letters: Mapping[str, int]) -> str | None:
    total = sum(letters.values())
    kana = scripts.get("HIRAGANA", 0) + scripts.get("KATAKANA", 0)
    if kana + scripts.get("CJK", 0) >= max(_LEAST_LETTERS, total / 2):
        return "ja" if kana * 10 >= scripts.get("CJK", 0) else "zh"
    script, count = max(scripts.items(), key=lambda one: (one[1], one[0]))
    return _SCRIPTS[script] if count >= max(_LEAST_LETTERS, total / 2) else None


def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]
