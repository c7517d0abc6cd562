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
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    learners = (
        LogisticRegression(),
        SVC(kernel="rbf"),
        SVC(kernel="linear"),
        KNeighborsClassifier(1),
        KNeighborsClassifier(min(3, x.shape[1])),
    )
    wrong = np.zeros(len(learners))
    for examples, labels, point, answer in zip(x, y, query, z, strict=True):
        if (labels == labels[0]).all():
            wrong += labels[0] != answer
        else:
            wrong += [learner.fit(examples, labels).predict(point[None])[0] != answer for learner in learners]
    return wrong / len(z)
