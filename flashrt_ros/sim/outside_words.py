"""Words of sentences that are not about the table; none of them is one of its own."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


THINGS: tuple[str, ...] = _words(
    """apple arm bag ball banana basket battery bed beer bell bike bird blanket boat book
    bottle bowl box bread bridge broom brush bucket building bus bush button cable cake
    camera can candle car card carpet cart cat chair charger cheese child clock cloth cloud
    coat coffee coin computer cow cup curtain dinner dish dog doll dress drink drone egg engine
    fan fence file finger fish flag flower food fork fruit game garbage glass glove gripper hammer
    hand hat head heart horse hose ice image jacket jar juice key keyboard kite knife ladder lamp
    laptop leaf letter light lock lunch machine magazine map meal meat medicine milk mirror
    money motor mouse mug music nail needle newspaper noodle note orange oven paint pan paper
    parcel pen pencil person phone photo picture pill pillow pipe pizza plant plate plug pot
    present radio ring robot rock rope rug salad salt sandwich saucer scarf screen screw
    shirt shoe sink soap sock sofa song soup spoon stairs star stick stone story sugar sun sweater
    tap tea telephone television ticket tie tin toast tool towel toy train tree trousers
    truck umbrella vase wallet watch water wheel wine wire wood"""
)
"""Things that are not there."""

WHERES: tuple[str, ...] = _words(
    """airport attic balcony bank bathroom beach bedroom cabinet cafe cellar ceiling city corridor
    counter country cupboard desk door drawer elevator entrance exit factory farm field floor
    forest fridge garage garden gate hall harbour hill hospital hotel house island kitchen lab lake
    library market moon mountain museum office park pharmacy platform pool porch restaurant river
    road roof room school sea shelf shop sky stadium station street supermarket terrace toilet
    tower tunnel village wall wardrobe window workshop yard zoo"""
)
"""Places that are not the table's."""

DEEDS: tuple[str, ...] = _words(
    """answer bake boil book bring build buy call carry charge clean close connect cook count cut
    deliver describe dig draw drop dry empty fetch fill find fix fold get give grab hang heat
    hide hold install iron kick kill lend lift light lock make mix open order pack paint peel
    pick place plant play plug polish pour prepare press print pull put read remove repair
    replace rinse save sell send serve sew shake sharpen show sing smell sort spill start steal
    stir sweep switch take taste tear teach tell test throw tidy translate unlock unpack wash
    water weigh wipe wrap write"""
)
"""What somebody may be asked to do with a thing."""

BODY_DEEDS: tuple[str, ...] = (
    "dance",
    "dance for me",
    "sing a song",
    "tell me a joke",
    "jump",
    "jump up and down",
    "sleep",
    "wake up",
    "wave",
    "wave your hand",
    "shut down",
    "turn off",
    "turn yourself off",
    "restart",
    "calibrate",
    "charge",
    "take a picture",
    "look at me",
    "look around",
    "listen",
    "be quiet",
    "speak louder",
    "follow me",
    "come to me",
    "come here",
    "go home",
    "go away",
    "go faster",
    "drive slower",
    "hurry up",
    "slow down",
    "do your work",
    "do something",
    "do it again",
    "undo that",
    "open the gripper",
    "close your hand",
    "fly",
    "climb",
    "explode",
    "help me",
    "help",
    "clean up",
    "learn to speak",
    "think about it",
    "say hello",
    "set the speed to maximum",
    "draw a circle",
    "write your name",
    "spin",
    "count to ten",
    "play dead",
    "go crazy",
    "run",
    "walk",
    "swim",
    "smile",
    "eat",
    "go on",
    "go",
    "move",
    "drive",
)
"""What somebody may be asked to do with himself, or with nothing."""

MOTIONS: tuple[str, ...] = (
    "go",
    "go",
    "go",
    "move",
    "drive",
    "head",
    "travel",
    "slide",
    "steer",
    "move the pusher",
    "walk",
    "run",
    "fly",
    "come",
)
"""Verbs that also drive the pusher; more often the commoner ones."""

PREPOSITIONS: tuple[str, ...] = (
    "to",
    "to",
    "to",
    "round",
    "around",
    "behind",
    "left of",
    "right of",
    "above",
    "below",
    "in front of",
    "to the left of",
    "to the right of",
    "past",
    "into",
    "under",
    "through",
    "from",
    "on",
    "near",
    "next to",
)
"""Between a verb and a place; more often the commoner ones."""

HANDLINGS: tuple[str, ...] = (
    "push",
    "pull",
    "pick up",
    "lift",
    "turn",
    "rotate",
    "flip",
    "move",
    "shove",
    "grab",
    "take",
    "throw",
    "hit",
    "touch",
    "drag",
    "look at",
    "paint",
    "remove",
    "kick",
    "bring me",
    "knock over",
    "break",
    "hold",
)
"""What the pusher can't do, or must not, to the block."""

TURNS: tuple[str, ...] = (
    "turn {} degrees",
    "rotate by {} degrees",
    "turn left {} degrees",
    "spin {} times",
    "wait {} seconds",
    "set the speed to {}",
    "turn right",
    "turn left",
    "turn around",
    "go left",
    "go right",
    "go up",
    "go down",
    "move left",
    "move up",
    "drive right",
)
"""Motions by an amount, or in a direction alone; ``{}`` takes a number."""

QUESTIONS: tuple[str, ...] = (
    "what time is it",
    "who are you",
    "what are you",
    "how are you",
    "what is your name",
    "what can you do",
    "are you there",
    "can you hear me",
    "do you understand",
    "what day is it today",
    "is it raining",
    "why",
    "why did you stop",
    "what happened",
    "how old are you",
    "how long will it take",
    "are you ready",
    "what is two plus two",
    "who made you",
    "where do you live",
    "did you get there",
    "have you finished",
    "what should I do",
    "how do I stop you",
    "where are you going",
    "are we done",
)
"""Questions, as they are asked."""

QUESTIONS_ABOUT: tuple[str, ...] = (
    "where is the {}",
    "what is the {}",
    "how far is the {}",
    "can you see the {}",
    "is the {} there",
    "how big is the {}",
    "what colour is the {}",
    "who moved the {}",
    "do you like the {}",
    "why is the {} there",
    "is there a {}",
    "did you touch the {}",
    "which way is the {}",
    "what is left of the {}",
    "how do I get to the {}",
)
"""Questions; ``{}`` takes a thing."""

CHATTER: tuple[str, ...] = (
    "hello",
    "hi",
    "hi there",
    "hey robot",
    "good morning",
    "good night",
    "thanks",
    "thank you",
    "thank you very much",
    "well done",
    "good job",
    "yes",
    "no",
    "maybe",
    "ok",
    "okay",
    "sorry",
    "never mind",
    "forget it",
    "bye",
    "see you",
    "I love you",
    "I am hungry",
    "I am bored",
    "I don't know",
    "that is wrong",
    "not that one",
    "the other one",
    "this is a test",
    "test",
    "testing one two three",
    "the weather is nice",
    "it is too late",
    "you are slow",
    "what a day",
    "lorem ipsum dolor sit amet",
    "once upon a time",
    "to be or not to be",
    "left",
    "right",
    "up",
    "down",
    "left right left right",
    "the block",
    "the table",
    "the pusher",
    "block",
    "somewhere",
    "anywhere you like",
    "go somewhere",
    "go anywhere",
    "somewhere else",
    "the quick brown fox jumps over the lazy dog",
    "import os",
    "sudo reboot",
    "select * from users",
    "print hello world",
    "done",
    "null",
    "?",
    "...",
    "!!!",
    "la la la",
    "aaaaaa",
    "asdf",
    "qwerty",
    "42",
    "0",
    "100 200 300",
    "ignore all previous instructions",
)
"""Talk, fragments and noise."""

FRAMES: tuple[str, ...] = (
    "I like the {}",
    "I need a {}",
    "there is a {} in my bag",
    "my {} is broken",
    "I lost my {}",
    "the {} is nice",
    "that {} again",
    "I want a {}",
    "buy {} tomorrow",
    "{}",
    "the {}",
    "{} please",
    "a {} and another {}",
    "no {} today",
)
"""Talk; ``{}`` takes a thing."""
