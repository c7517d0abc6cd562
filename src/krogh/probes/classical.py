"""Classical learners fitted on the examples of one prompt: what in-context learning is compared with (004 Fig 6.4)."""

import numpy as np
from jaxtyping import Float

CLASSICAL = ("logistic", "SVM Gaussian", "SVM linear", "1-NN", "3-NN")


def classical_errors(
    x: Float[np.ndarray, "prompts l dx"],
    y: Float[np.ndarray, "prompts l"],
    query: Float[np.ndarray, "prompts dx"],
    z: Float[np.ndarray, " prompts"],
) -> Float[np.ndarray, "learners"]:
    """Error of every learner of `CLASSICAL` on the queries, each fitted anew on the examples of its prompt.

    Where all labels agree that label is the answer.
    """
    from sklearn import config_context
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import SVC

    fitted = (LogisticRegression(solver="newton-cholesky"), SVC(kernel="rbf"), SVC(kernel="linear"))
    answers = np.repeat(y[:, :1], len(fitted), axis=1)
    # thousands of fits on a few points each: checking the arguments would take most of the time
    with config_context(assume_finite=True, skip_parameter_validation=True):
        for i in np.flatnonzero((y != y[:, :1]).any(axis=1)):
            answers[i] = [learner.fit(x[i], y[i]).predict(query[i : i + 1])[0] for learner in fitted]
    nearest = np.argsort(np.sum((x - query[:, None]) ** 2, axis=-1), axis=1)
    ranked = np.take_along_axis(y, nearest, axis=1)
    votes = [np.where(ranked[:, :k].sum(axis=1) > 0, 1.0, -1.0) for k in (1, 3)]
    return np.mean(np.column_stack([answers, *votes]) != z[:, None], axis=0)
